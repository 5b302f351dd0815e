"""Ansible action `airgap_fill`: copy the files of a bundle from the controller to the host that serves them.

It sends only missing files, in archives of up to 256 MiB, so that neither side needs space for a second copy; ansible.builtin.copy would
need a connection per file. In check mode it changes nothing; with `host` it returns a verdict.
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
# Kinds of files that hosts download. The controller reads wheels from its own folder.
_SERVED = ("package", "file")


class ActionModule(ActionBase):
    """Arguments: `bundle` (folder on the controller), `folder` (on the host), `host` (name for the verdict; empty = no verdict)."""

    _VALID_ARGS = frozenset({"bundle", "folder", "host"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether files were sent or removed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        started = time.time()
        bundle, folder = Path(self._task.args["bundle"]), str(self._task.args["folder"])
        sums = _sums(bundle)
        found = self._store("list", folder, sums, task_vars)
        missing, unlisted = found["missing"], found["unlisted"]
        if host := self._task.args.get("host"):
            return {
                **result,
                "changed": False,
                "stdout": json.dumps({"verdicts": [_verdict(host, missing, len(sums), started)]}),
                **_failure(missing),
            }
        if not self._task.check_mode:
            for batch in _batches(bundle, missing):
                self._send(bundle, folder, batch, sums, task_vars)
            if unlisted:
                self._store("remove_unlisted", folder, sums, task_vars)
        diff = {"before": "", "after": "".join(f"{path}\n" for path in missing), "after_header": folder}
        return {**result, "changed": bool(missing or unlisted), "diff": [diff] if missing else []}

    def _store(self, step: str, folder: str, sums: dict[str, str], task_vars: Any, archive: str = "") -> dict[str, Any]:
        arguments = {"step": step, "folder": folder, "sums": json.dumps(sums), "archive": archive}
        answer: dict[str, Any] = self._execute_module(module_name="airgap_store", module_args=arguments, task_vars=task_vars)
        if answer.get("failed"):
            raise AnsibleActionFail(str(answer.get("msg", "the host did not answer")))
        return answer

    def _send(self, bundle: Path, folder: str, batch: Sequence[str], sums: dict[str, str], task_vars: Any) -> None:
        self._make_tmp_path()
        shell = self._connection._shell  # noqa: SLF001 - ActionBase has no public accessor
        try:
            with tempfile.NamedTemporaryFile(prefix="primus-airgap-", suffix=".tar") as archive:
                with tarfile.open(fileobj=archive, mode="w") as target:
                    for path in batch:
                        target.add(bundle / path, arcname=path, recursive=False)
                archive.flush()
                remote = self._transfer_file(archive.name, shell.join_path(shell.tmpdir, "batch.tar"))
            self._fixup_perms2((shell.tmpdir, remote))
            answer = self._store("unpack", folder, {path: sums[path] for path in batch}, task_vars, remote)
        except FileNotFoundError as error:
            raise AnsibleActionFail(f"{error.filename} does not exist. Fix: primus-bootstrap bundle check, then bundle create") from error
        finally:
            self._remove_tmp_path(shell.tmpdir)
        if answer["wrong"]:
            names = ", ".join(answer["wrong"][:3])
            raise AnsibleActionFail(f"{names}: the checksum differs from the lock. Fix: primus-bootstrap bundle check, then bundle create")


def _sums(bundle: Path) -> dict[str, str]:
    try:
        from primus_bootstrap.bundle.lock_file import NAME, read_lock  # noqa: PLC0415 - if it is missing, the error has a fix
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


def _verdict(host: str, missing: Sequence[str], count: int, started: float) -> dict[str, Any]:
    return {
        "check": "airgap.mirror",
        "host": host,
        "verdict": "fail" if missing else "pass",
        "expected": f"{count} files of the bundle with the right checksum",
        "found": f"{count - len(missing)} files",
        "source": "bundle.lock.yaml",
        "reason": f"missing or damaged: {', '.join(missing[:5])}" if missing else "",
        "fix": "apply the phase baseline again" if missing else "",
        "started": started,
        "seconds": time.time() - started,
        "schema": "primus.verdict/1",
    }


def _failure(missing: Sequence[str]) -> dict[str, Any]:
    message = f"{len(missing)} files of the bundle are missing or damaged on this host. Fix: apply the phase baseline again"
    return {"failed": True, "msg": message} if missing else {}
