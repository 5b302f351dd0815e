"""Runs Kubespray for one cluster: writes its values, lets it judge, starts it, and says what came of it.

<state folder>/kubespray/
    inventory/       the generated values, anew before every run
    facts/           what hosts said of themselves, one file a host
    artifacts/       the administrator's kubeconfig
    credentials/     Kubespray's own secrets
    logs/            what it printed, the last runs
    done.json        the inventory of the last run that ended well
    cordons.json     of an upgrade that was cut short: which Nodes took pods before (`cordons`)
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.kubernetes import preflight
from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths
from primus_bootstrap.kubernetes.kubespray_values import chosen_values, group_files
from primus_bootstrap.kubernetes.reconcile import ClusterState, choose, refuse_recovery, refuse_removal, state_from_json, state_of, without
from primus_bootstrap.kubernetes.release import make_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.kubernetes.source import Source

LINES_VARIABLE = "PRIMUS_LINES"
_CALLBACKS = Path(__file__).with_name("callbacks")
_KEPT_LOGS = 20
_NAMED = 5
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Kubespray:
    """Kubespray, ready for one cluster. `secrets` are arguments, by twos, that open Vault and sudo; they name files."""

    cluster: Cluster
    place: KubesprayPaths
    folder: Path
    secrets: tuple[str, ...] = ()

    @property
    def vault(self) -> tuple[str, ...]:
        """Of these arguments those that open Vault: `ansible-inventory` knows no others."""
        pairs = zip(self.secrets[::2], self.secrets[1::2], strict=True)
        return tuple(word for pair in pairs if pair[0] == "--vault-id" for word in pair)

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of its Ansible."""
        return {
            **preflight.base_environment(),
            **self.place.environment,
            "ANSIBLE_CALLBACK_PLUGINS": str(_CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "primus_lines",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_HOST_PATTERN_MISMATCH": "ignore",
        }


def prepare(cluster: Cluster, source: Source, *, secrets: tuple[str, ...] = ()) -> Kubespray:
    """Make the release ready and write the cluster's values.

    Raises:
        PlanError: somebody else makes this cluster, or the release cannot be had; no host was contacted.
    """
    preflight.refuse_foreign(cluster, "kubespray")
    folder = cluster.state_dir.absolute() / "kubespray"
    ready = make_ready(source)
    place = KubesprayPaths(
        ready.checkout, ready.programs, cluster.snapshot or cluster.path.absolute(), folder / "inventory", folder / "facts"
    )
    try:
        for name in ("inventory/group_vars", "facts", "artifacts", "credentials", "logs"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in (place.generated / "group_vars").iterdir():
            old.unlink()
        for name, text in group_files(chosen_values(cluster, folder)).items():
            (place.generated / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"cannot write {error.filename or folder}: {error.strerror}", fix="make the cluster's state folder writable"
        ) from error
    return Kubespray(cluster, place, folder, secrets)


def course(kubespray: Kubespray, present: Collection[str], *, whole: bool = False) -> tuple[tuple[Command, ...], ClusterState]:
    """Return what has to run for hosts.yaml as it is now, judged by the release itself, and the state that it leads to.

    Raises:
        PlanError: it is refused; no host was contacted.
    """
    now = _now(kubespray)
    unknown = tuple(host for host in now.hosts if not (kubespray.place.facts / host).is_file())
    chosen = choose(_before(kubespray), now, present, unknown=unknown, whole=whole)
    if chosen.commands:
        preflight.check(kubespray.place, chosen.commands, kubespray.environment, kubespray.secrets)
    return chosen.commands, chosen.state


def judged(
    kubespray: Kubespray, commands: tuple[Command, ...], *, verb: str, host: str = "", away: Collection[str] = ()
) -> tuple[tuple[Command, ...], ClusterState | None]:
    """Return commands that were asked for by name once the release has judged them, and the state that they lead to.

    Args:
        kubespray: from `prepare`.
        commands: what was asked for.
        verb: what is done with it.
        host: the host that leaves.
        away: hosts that an upgrade leaves out; they are then as they were before.

    Raises:
        PlanError: it is refused; no host was contacted.
    """
    now, before = _now(kubespray), _before(kubespray)
    if verb in ("remove", "forget"):
        refuse_removal(now, host)
        # Moved in hosts.yaml and not yet in the cluster. Of a host that is dead that play would wait for its etcd in vain.
        if verb == "remove" and before is not None and host in before.hosts:
            refuse_removal(before, host)
    if verb == "recover":
        refuse_recovery(now)
    preflight.check(kubespray.place, commands, kubespray.environment, kubespray.secrets)
    if verb in ("remove", "forget"):
        return commands, without(before or now, host)
    if verb == "upgrade" and before is not None:
        kept = {one: before.hosts.get(one, "") for one in away}
        return commands, replace(now, left=before.left, hosts={**now.hosts, **kept})
    return commands, None if verb == "reset" else now


def _now(kubespray: Kubespray) -> ClusterState:
    return state_of(preflight.read_inventory(kubespray.place, kubespray.environment, kubespray.vault), load_release().commit)


def first_addresses(kubespray: Kubespray) -> tuple[str, ...]:
    """Return the addresses of the first control plane, as Kubespray found them, else as hosts.yaml has them.

    None where hosts.yaml has a load balancer before the API servers: hosts that join are sent there.
    """
    cluster = kubespray.cluster
    first = next(iter(cluster.groups.get("kube_control_plane", ())), "")
    if not first or "loadbalancer_apiserver" in cluster.stated:
        return ()
    try:
        found = json.loads((kubespray.place.facts / first).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    known = [found.get("main_access_ip"), found.get("main_ip")]
    if not any(known):
        stated = cluster.view.variables(first)
        known = [stated.get("access_ip"), stated.get("ip")]
    return tuple(dict.fromkeys(str(address) for address in known if address))


def watched() -> str:
    """Return the file from which the run that this is part of reads events; empty where nobody does."""
    return os.environ.get(LINES_VARIABLE, "")


def run(
    kubespray: Kubespray,
    commands: Iterable[Command],
    *,
    lines: str = "",
    forks: int = 0,
    around: Callable[[Command], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> int:
    """Run commands one after the other; return how many results changed something.

    Args:
        kubespray: from `prepare`.
        commands: what to run; the first that fails is the last.
        lines: the file that a watcher reads events from; one beside the log where it is empty.
        forks: how many hosts at once; Kubespray's own where 0.
        around: what is done before a command, and after one that has ended well.

    Raises:
        RunError: with the hosts that failed, and why.
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
        # No time limit: it takes as long as the fleet is large, and the run that started it can be interrupted.
        done = subprocess.run(
            command.argv(kubespray.place, *more),
            cwd=kubespray.place.release,
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
        raise RunError(f"Kubespray could not {command.why}: {failures}", fix=f"mend that and run it again; all it said: {log}")
    return outcome.changed


def keep(kubespray: Kubespray, state: ClusterState | None) -> None:
    """Note what the cluster is now; None where it is no more."""
    if state is None:
        for name in ("done.json", "cordons.json"):
            (kubespray.folder / name).unlink(missing_ok=True)
        return
    write_atomic(kubespray.folder / "done.json", json.dumps(state.to_json(), indent=1) + "\n")


def _before(kubespray: Kubespray) -> ClusterState | None:
    path = kubespray.folder / "done.json"
    try:
        return state_from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        what = f"{path} cannot be read ({error}): what Kubespray did last is not known"
        raise PlanError(what, fix=f"remove {path}; the next apply runs the full play, which is safe to repeat") from error


def _new_log(folder: Path, command: Command) -> Path:
    for old in sorted(folder.glob("*.log"))[: -_KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    log = folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.monotonic_ns()}-{Path(command.playbook).stem}.log"
    os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o600))
    return log


@dataclass(slots=True)
class Outcome:
    """What the events of one run come to: how many results changed something, the last failure of each host, the hosts that it lost."""

    changed: int = 0
    last: dict[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one more event into account."""
        kind, data = event.get("event"), event["event_data"]
        res = data.get("res") or {}
        self.changed += bool(res.get("changed"))
        if kind in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            why = "hidden: the task sets no_log" if res.get("censored") else res.get("msg") or res.get("stderr") or "it said nothing"
            self.last[data["host"]] = f"{data['task']}: {str(why).strip()}"
        elif kind == "playbook_on_stats":
            self.lost = tuple({**data["failures"], **data["dark"]})

    def failures(self) -> str:
        """Name the hosts of the recap with the last thing that failed there; empty without a recap."""
        named = [f"{host}: {self.last.get(host, 'failed')}" for host in self.lost]
        more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return "; ".join(named[:_NAMED]) + more


def read_outcome(path: Path, begin: int) -> Outcome:
    """Read a run's events one by one from an offset on: a large fleet has gigabytes of them. Damaged lines are left out."""
    outcome = Outcome()
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
