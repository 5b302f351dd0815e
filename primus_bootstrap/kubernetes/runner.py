"""Run Kubespray for one cluster: write its variables, check the inventory, run the commands, and report failures.

<state folder>/kubespray/
    inventory/       generated variables, rewritten before every run
    facts/           the fact cache, one file per host
    artifacts/       the administrator's kubeconfig
    credentials/     Kubespray's secrets
    logs/            the output of the last runs
    done.json        the state after the last successful run
    cordons.json     the schedulable Nodes before an interrupted upgrade (see `cordons`)
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.core.structured import InvalidDataError, read
from primus_bootstrap.kubernetes import preflight
from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths
from primus_bootstrap.kubernetes.kubespray_values import chosen_values, group_files
from primus_bootstrap.kubernetes.reconcile import ClusterState, choose, refuse_recovery, refuse_removal, state_of, without
from primus_bootstrap.kubernetes.release import prepare_release

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.kubernetes.source import KubespraySource

LINES_VARIABLE = "PRIMUS_LINES"
_CALLBACKS = Path(__file__).with_name("callbacks")
_KEPT_LOGS = 20
_NAMED = 5
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Kubespray:
    """Kubespray, prepared for one cluster. `secrets` are pairs of arguments with the password files of Vault and sudo."""

    cluster: Cluster
    paths: KubesprayPaths
    folder: Path
    secrets: tuple[str, ...] = ()

    @property
    def vault(self) -> tuple[str, ...]:
        """The arguments of `secrets` for Vault, the only ones that `ansible-inventory` accepts."""
        pairs = zip(self.secrets[::2], self.secrets[1::2], strict=True)
        return tuple(word for pair in pairs if pair[0] == "--vault-id" for word in pair)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its Ansible."""
        return {
            **preflight.base_environment(),
            **self.paths.environment,
            "ANSIBLE_CALLBACK_PLUGINS": str(_CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "primus_lines",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_HOST_PATTERN_MISMATCH": "ignore",
        }


def prepare(cluster: Cluster, source: KubespraySource, *, secrets: tuple[str, ...] = ()) -> Kubespray:
    """Install the release and write the cluster's variables, without contacting a host.

    Raises:
        PlanError: `kubernetes_provider` is `existing`, or the release is not available.
    """
    preflight.refuse_foreign(cluster, "kubespray")
    folder = cluster.state_dir.absolute() / "kubespray"
    release = preflight.release_of(cluster)
    prepared = prepare_release(replace(source, release=release.version))
    hosts = cluster.snapshot or cluster.path.absolute()
    paths = KubesprayPaths(prepared.checkout, prepared.programs, hosts, folder / "inventory", folder / "facts", release.version)
    try:
        for name in ("inventory/group_vars", "facts", "artifacts", "credentials", "logs"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in (paths.generated / "group_vars").iterdir():
            old.unlink()
        for name, text in group_files(chosen_values(cluster, folder)).items():
            (paths.generated / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"cannot write {error.filename or folder}: {error.strerror}", fix=f"make the state folder {folder} writable"
        ) from error
    return Kubespray(cluster, paths, folder, secrets)


def plan_commands(kubespray: Kubespray, present: Collection[str], *, whole: bool = False) -> tuple[tuple[Command, ...], ClusterState]:
    """Return the checked commands for the current hosts.yaml, and the state after them, without contacting a host.

    Raises:
        PlanError: The change is not supported, or a check of Kubespray failed.
    """
    now = _current_state(kubespray)
    unknown = tuple(host for host in now.hosts if not (kubespray.paths.facts / host).is_file())
    plan = choose(_saved_state(kubespray), now, present, unknown=unknown, whole=whole)
    if plan.commands:
        preflight.check(kubespray.paths, plan.commands, kubespray.environment, kubespray.secrets)
    return plan.commands, plan.state


def check_commands(
    kubespray: Kubespray, commands: tuple[Command, ...], *, verb: str, host: str = "", away: Collection[str] = ()
) -> tuple[tuple[Command, ...], ClusterState | None]:
    """Check the commands of a verb and return them with the state after them, without contacting a host.

    Args:
        kubespray: The result of `prepare`.
        verb: `remove`, `forget`, `recover`, `upgrade` or `reset`.
        away: Hosts that the upgrade excludes, whose state does not change.

    Raises:
        PlanError: The operation is not supported, or a check of Kubespray failed.
    """
    now, before = _current_state(kubespray), _saved_state(kubespray)
    if verb in ("remove", "forget"):
        refuse_removal(now, host)
        # The host may have been moved in hosts.yaml without an apply. `forget` skips this check: an apply would wait for the dead host.
        if verb == "remove" and before is not None and host in before.hosts:
            refuse_removal(before, host)
    if verb == "recover":
        refuse_recovery(now)
    preflight.check(kubespray.paths, commands, kubespray.environment, kubespray.secrets)
    if verb in ("remove", "forget"):
        return commands, without(before or now, host)
    if verb == "upgrade" and before is not None:
        unchanged = {name: before.hosts.get(name, "") for name in away}
        return commands, replace(now, left=before.left, hosts={**now.hosts, **unchanged})
    return commands, None if verb == "reset" else now


def _current_state(kubespray: Kubespray) -> ClusterState:
    return state_of(
        preflight.read_inventory(kubespray.paths, kubespray.environment, kubespray.vault), preflight.release_of(kubespray.cluster).commit
    )


def first_addresses(kubespray: Kubespray) -> tuple[str, ...]:
    """Return the addresses of the first control plane from Kubespray's facts, or else from hosts.yaml.

    Empty with a load balancer for the API servers, which new hosts use instead.
    """
    cluster = kubespray.cluster
    first = next(iter(cluster.groups.get("kube_control_plane", ())), "")
    if not first or "loadbalancer_apiserver" in cluster.variable_origins:
        return ()
    try:
        facts = json.loads((kubespray.paths.facts / first).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = {}
    addresses = [facts.get("main_access_ip"), facts.get("main_ip")]
    if not any(addresses):
        variables = cluster.view.variables(first)
        addresses = [variables.get("access_ip"), variables.get("ip")]
    return tuple(dict.fromkeys(str(address) for address in addresses if address))


def events_file() -> str:
    """Return the file from which the engine reads events of Kubespray's Ansible, or an empty string outside of a run."""
    return os.environ.get(LINES_VARIABLE, "")


def run(
    kubespray: Kubespray,
    commands: Iterable[Command],
    *,
    lines: str = "",
    forks: int = 0,
    around: Callable[[Command], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> int:
    """Run commands one after the other; return the number of changed task results.

    Args:
        kubespray: The result of `prepare`.
        commands: The commands. The first failure ends the run.
        lines: The file for events; empty for a temporary file beside the log.
        forks: The number of hosts in parallel; 0 for Kubespray's default.
        around: A context manager for each command.

    Raises:
        RunError: A command failed; the error names the failed hosts and the causes.
    """
    changed = 0
    for command in commands:
        with around(command):
            changed += _run_one(kubespray, command, lines, forks)
    return changed


def _run_one(kubespray: Kubespray, command: Command, lines: str, forks: int) -> int:
    log = _new_log(kubespray.folder / "logs", command)
    events = Path(lines) if lines else log.with_suffix(".jsonl")
    begin = events.stat().st_size if events.is_file() else 0
    more = (*kubespray.secrets, *(("--forks", str(forks)) if forks else ()))
    with log.open("w", encoding="utf-8") as out:
        # Without a time limit: the duration depends on the number of hosts.
        done = subprocess.run(
            command.argv(kubespray.paths, *more),
            cwd=kubespray.paths.release,
            env={**kubespray.environment, LINES_VARIABLE: str(events)},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    outcome = read_outcome(events, begin)
    if not lines:
        events.unlink(missing_ok=True)
    if done.returncode != 0:
        failures = outcome.failures() or "; ".join(_last_lines(log))
        raise RunError(f"Kubespray could not {command.why}: {failures}", fix=f"correct the cause and run this again; its output: {log}")
    return outcome.changed


def save_state(kubespray: Kubespray, state: ClusterState | None) -> None:
    """Save the state of the cluster; None removes it."""
    if state is None:
        for name in ("done.json", "cordons.json"):
            (kubespray.folder / name).unlink(missing_ok=True)
        return
    write_atomic(kubespray.folder / "done.json", json.dumps(asdict(state), indent=1) + "\n")


def _saved_state(kubespray: Kubespray) -> ClusterState | None:
    path = kubespray.folder / "done.json"
    try:
        return read(ClusterState, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, InvalidDataError) as error:
        what = f"{path} cannot be read ({error}): the last state of the cluster is unknown"
        raise PlanError(what, fix=f"rm {path}; the next apply then runs the full play, which is safe to repeat") from error


def _new_log(folder: Path, command: Command) -> Path:
    for old in sorted(folder.glob("*.log"))[: -_KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    log = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.monotonic_ns()}-{Path(command.playbook).stem}.log"
    os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o600))
    return log


@dataclass(slots=True)
class RunOutcome:
    """The result of one run: the number of changed task results, the last failure of each host, and the failed hosts."""

    changed: int = 0
    last: dict[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def add(self, event: Mapping[str, Any]) -> None:
        """Add one event."""
        kind, data = event.get("event"), event["event_data"]
        res = data.get("res") or {}
        self.changed += bool(res.get("changed"))
        if kind in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            why = "hidden: the task sets no_log" if res.get("censored") else res.get("msg") or res.get("stderr") or "no message"
            self.last[data["host"]] = f"{data['task']}: {str(why).strip()}"
        elif kind == "playbook_on_stats":
            self.lost = tuple({**data["failures"], **data["dark"]})

    def failures(self) -> str:
        """Return the failed hosts of the recap with their last failures, or an empty string without a recap."""
        named = [f"{host}: {self.last.get(host, 'failed')}" for host in self.lost]
        more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return "; ".join(named[:_NAMED]) + more


def read_outcome(path: Path, begin: int) -> RunOutcome:
    """Read the events of a run from an offset on, line by line because there may be gigabytes. Damaged lines are skipped."""
    outcome = RunOutcome()
    if path.is_file():
        with path.open("rb") as file:
            file.seek(begin)
            for line in file:
                with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    outcome.add(json.loads(line))
    return outcome


def _last_lines(path: Path) -> list[str]:
    """Return the last two lines of a log."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().decode(errors="replace").strip().splitlines()[-2:]
