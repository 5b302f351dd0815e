"""Run Kubespray on the controller for the whole cluster: the Ansible action `kubespray`.

Own plugin: it runs the playbooks that hosts.yaml needs since the last run, with this run's passwords of Vault and sudo.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import shutil
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import constants, context
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.kubernetes.commands import Command
    from primus_bootstrap.kubernetes.cordons import Cordons
    from primus_bootstrap.kubernetes.reconcile import ClusterState
    from primus_bootstrap.kubernetes.runner import Kubespray

_VERBS = ("apply", "remove", "forget", "upgrade", "reset", "recover")


class ActionModule(ActionBase):
    """`verb` is the operation. `apply` compares hosts.yaml with the last run and runs only the playbooks that are needed."""

    _VALID_ARGS = frozenset(
        {
            "verb",
            "folder",
            "archive",
            "sha256",
            "url",
            "packages",
            "bundle",
            "archive_url",
            "hosts",
            "host",
            "address",
            "version",
            "batches",
            "away",
            "serial",
            "kubeconfig",
            "snapshot",
            "whole",
        }
    )
    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the playbooks that ran and whether they changed anything; in check mode those that would run."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.inventory.load import load_cluster  # noqa: PLC0415
            from primus_bootstrap.kubernetes import runner  # noqa: PLC0415
            from primus_bootstrap.kubernetes.source import KubespraySource  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, known = self._task.args, task_vars or {}
        private = Path(tempfile.mkdtemp(prefix="kubespray-", dir=constants.DEFAULT_LOCAL_TMP))  # mode 0700
        try:
            source = KubespraySource(**{one.name: str(args.get(one.name, "")) for one in fields(KubespraySource)})
            password = private / "vault-0"
            secrets = self._secrets(private)
            cluster = load_cluster(self._hosts_file(known), vault_password_file=password if password.is_file() else None)
            kubespray = runner.prepare(cluster, source, secrets=secrets)
            commands, state = self._plan(kubespray)
            lines = [f"{command.playbook} {' '.join(command.arguments)}: {command.why}" for command in commands]
            if self._task.check_mode:
                after = "".join(f"{line}\n" for line in (*lines, *self._not_compared()))
                return {
                    **result,
                    "changed": bool(lines),
                    "commands": lines,
                    "diff": {"before": "", "after": after, "after_header": "Kubespray"},
                }
            cordons = self._cordons(kubespray, known["hostvars"])
            forks = int(context.CLIARGS.get("forks") or 0)
            changed = runner.run(kubespray, commands, lines=runner.events_file(), forks=forks, around=cordons.around)
            if str(args.get("verb", "apply")) in ("apply", "upgrade"):
                cordons.restore()
            runner.save_state(kubespray, state)
            first = list(runner.first_addresses(kubespray))
        except PrimusError as problem:
            raise AnsibleActionFail(_message(problem)) from None  # Ansible would print the cause as well, which is the same
        finally:
            shutil.rmtree(private, ignore_errors=True)
        return {**result, "changed": changed > 0, "commands": lines, "first_addresses": first}

    def _plan(self, kubespray: Kubespray) -> tuple[tuple[Command, ...], ClusterState | None]:
        """Return the commands to run and the state to save afterwards; None if the cluster then differs from hosts.yaml."""
        from primus_bootstrap.core.errors import PlanError  # noqa: PLC0415
        from primus_bootstrap.kubernetes import commands, runner  # noqa: PLC0415

        args, verb = self._task.args, str(self._task.args.get("verb", "apply"))
        host, address = str(args.get("host", "")), str(args.get("address", ""))
        away = tuple(args.get("away", ()))
        if verb == "apply":
            return runner.plan_commands(kubespray, present=tuple(args["hosts"]), whole=boolean(args.get("whole", False)))
        builders = {
            "remove": lambda: commands.remove(host),
            "forget": lambda: commands.remove_dead(host, address=address),
            "upgrade": lambda: commands.upgrade(
                str(args["version"]), workers=args.get("batches", ()), serial=str(args.get("serial", "")), away=away
            ),
            "reset": commands.reset,
            "recover": lambda: commands.recover(snapshot=str(args.get("snapshot", ""))),
        }
        if verb not in builders:
            raise PlanError(f"no such verb: {verb}", fix=f"choose from: {', '.join(_VERBS)}")
        return runner.check_commands(kubespray, builders[verb](), verb=verb, host=host, away=away)

    def _not_compared(self) -> tuple[str, ...]:
        """Return a line for what check mode cannot compare before the cluster exists."""
        if str(self._task.args.get("verb", "apply")) != "apply" or Path(str(self._task.args.get("kubeconfig", ""))).is_file():
            return ()
        return ("labels, charts and queues come after it; they are compared once the cluster exists",)

    def _cordons(self, kubespray: Kubespray, hostvars: Any) -> Cordons:
        """Return the record of the nodes that Kubespray cordons in an upgrade."""
        from primus_bootstrap.kubernetes.api import Server  # noqa: PLC0415
        from primus_bootstrap.kubernetes.cordons import Cordons  # noqa: PLC0415

        def node_of(host: str) -> str:
            return str(hostvars[host].get("kube_override_hostname") or host)

        def server() -> Server:
            return Server(Path(str(self._task.args.get("kubeconfig", ""))))

        return Cordons(kubespray.folder / "cordons.json", server, kubespray.cluster.groups, node_of)

    def _hosts_file(self, known: Mapping[str, Any]) -> Path:
        """Return the hosts.yaml to read: in a run of primus-bootstrap the run's snapshot, as all other tasks do."""
        from primus_bootstrap.inventory.snapshot import source_of  # noqa: PLC0415

        given = [Path(str(one)) for one in context.CLIARGS.get("inventory") or ()]
        return next((one for one in given if source_of(one)), Path(str(known["inventory_file"])))

    def _secrets(self, private: Path) -> tuple[str, ...]:
        """Return the arguments that pass the passwords of Vault and sudo, in files that are removed after the run."""
        given: list[str] = []
        for number, (name, secret) in enumerate(getattr(self._loader._vault, "secrets", None) or ()):  # noqa: SLF001 - Ansible has no public interface for it
            given += ["--vault-id", f"{name}@{_file(private / f'vault-{number}', secret.bytes)}"]
        if password := getattr(self._play_context, "become_pass", None):
            given += ["--become-password-file", str(_file(private / "become", str(password).encode()))]
        return tuple(given)


def _file(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def _message(problem: Any) -> str:
    """Return the error and its fix; of an invalid inventory all problems."""
    several = getattr(problem, "problems", ())
    return "\n".join(f"{one.file}:{one.line}: {one.what}. Fix: {one.fix}" for one in several) or f"{problem.what}. Fix: {problem.fix}"
