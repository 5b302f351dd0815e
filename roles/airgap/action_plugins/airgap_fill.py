"""Bring the files of a bundle from the controller to the host that offers them: the Ansible action `airgap_fill`.

Only what the host lacks is sent, some hundred MiB at a time, so that neither side needs room for a second copy.
In check mode it only looks, and with `host` it hands over a verdict.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_AT_ONCE_BYTES = 256 << 20
# What hosts fetch; wheels are taken by the controller, from its own folder.
_SERVED = ("package", "file")


class ActionModule(ActionBase):
    """Arguments: `bundle` (a folder of the controller), `folder` (on the host), `host` (whose verdict it is; empty for none)."""

    _VALID_ARGS = frozenset({"bundle", "folder", "host"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether anything was sent or removed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        started = time.time()
        bundle, folder = Path(self._task.args["bundle"]), str(self._task.args["folder"])
        sums = _sums(bundle)
        found = self._store("look", folder, sums, task_vars)
        due, surplus = found["lacking"], found["surplus"]
        if host := self._task.args.get("host"):
            return {
                **result,
                "changed": False,
                "stdout": json.dumps({"verdicts": [_verdict(host, due, len(sums), started)]}),
                **_failure(due),
            }
        if not self._task.check_mode:
            for batch in _batches(bundle, due):
                self._send(bundle, folder, batch, sums, task_vars)
            if surplus:
                self._store("tidy", folder, sums, task_vars)
        diff = {"before": "", "after": "".join(f"{path}\n" for path in due), "after_header": folder}
        return {**result, "changed": bool(due or surplus), "diff": [diff] if due else []}

    def _store(self, step: str, folder: str, sums: dict[str, str], task_vars: Any, archive: str = "") -> dict[str, Any]:
        arguments = {"step": step, "folder": folder, "sums": json.dumps(sums), "archive": archive}
        said: dict[str, Any] = self._execute_module(module_name="airgap_store", module_args=arguments, task_vars=task_vars)
        if said.get("failed"):
            raise AnsibleActionFail(str(said.get("msg", "the host did not answer")))
        return said

    def _send(self, bundle: Path, folder: str, batch: Sequence[str], sums: dict[str, str], task_vars: Any) -> None:
        self._make_tmp_path()
        shell = self._connection._shell  # noqa: SLF001 - what ActionBase itself offers no accessor for
        try:
            with tempfile.NamedTemporaryFile(prefix="primus-airgap-", suffix=".tar") as archive:
                with tarfile.open(fileobj=archive, mode="w") as target:
                    for path in batch:
                        target.add(bundle / path, arcname=path, recursive=False)
                archive.flush()
                remote = self._transfer_file(archive.name, shell.join_path(shell.tmpdir, "batch.tar"))
            self._fixup_perms2((shell.tmpdir, remote))
            said = self._store("unpack", folder, {path: sums[path] for path in batch}, task_vars, remote)
        except FileNotFoundError as error:
            raise AnsibleActionFail(f"{error.filename} is not there. Fix: primus-bootstrap bundle check, then bundle create") from error
        finally:
            self._remove_tmp_path(shell.tmpdir)
        if said["wrong"]:
            raise AnsibleActionFail(
                f"{', '.join(said['wrong'][:3])}: not what the lock says. Fix: primus-bootstrap bundle check names all of them"
            )


def _sums(bundle: Path) -> dict[str, str]:
    try:
        from primus_bootstrap.bundle.lock_file import NAME, read_lock  # noqa: PLC0415 - where it is missing the error has a fix
        from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    try:
        return {item.path: item.sha256 for item in read_lock(bundle / NAME).items if item.kind in _SERVED}
    except PrimusError as error:
        raise AnsibleActionFail(f"{error.what}. Fix: {error.fix}") from error


def _batches(bundle: Path, paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        own = (bundle / path).stat().st_size if (bundle / path).is_file() else 0
        if batch and size + own > _AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += own
    if batch:
        yield batch


def _verdict(host: str, due: Sequence[str], count: int, started: float) -> dict[str, Any]:
    return {
        "check": "airgap.mirror",
        "host": host,
        "verdict": "fail" if due else "pass",
        "expected": f"{count} files of the bundle, each with its sum",
        "found": f"{count - len(due)} files",
        "source": "bundle.lock.yaml",
        "reason": f"missing or damaged: {', '.join(due[:5])}" if due else "",
        "fix": "apply the phase baseline again" if due else "",
        "started": started,
        "seconds": time.time() - started,
        "schema": "primus.verdict/1",
    }


def _failure(due: Sequence[str]) -> dict[str, Any]:
    message = f"{len(due)} files of the bundle are missing or damaged here. Fix: apply the phase baseline again"
    return {"failed": True, "msg": message} if due else {}
