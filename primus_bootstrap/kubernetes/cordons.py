"""Record which Nodes were schedulable before Kubespray cordons them, so that they are uncordoned after an interrupted upgrade.

Kubespray drains and uncordons only Nodes that were schedulable: after an interrupted run it would upgrade a cordoned Node without a
drain and leave it cordoned. So each run first writes <state folder>/kubespray/cordons.json:

    taking       Nodes of the current run that were schedulable before it
    unfinished   Nodes of this run and of earlier ones that no run has finished
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.node_marks import CORDON, annotations_of, is_cordoned, marks_of
from primus_bootstrap.kubernetes.nodes import change_node, for_each, read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.kubernetes.api import Api
    from primus_bootstrap.kubernetes.commands import Command

_UPGRADE = "upgrade-cluster.yml"


def cordoned_by(command: Command, groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the hosts whose Nodes a run of Kubespray cordons: those of its limit."""
    if command.playbook != _UPGRADE:
        return ()
    words = [word for word in re.split("[,:]", command.limit) if word]
    hosts = [host for word in words if not word.startswith("!") for host in groups.get(word, (word,))]
    return tuple(dict.fromkeys(host for host in hosts if f"!{host}" not in words))


def uncordon_patch(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that removes the cordon of an interrupted run, or None if nothing changes.

    If the Node has a mark of this project, the cordon becomes the project's instead and is removed with the last mark.
    """
    ours = CORDON in annotations_of(node)
    if not is_cordoned(node) or (marks_of(node) and ours):
        return None
    metadata: dict[str, Any] = {"resourceVersion": node["metadata"]["resourceVersion"]}
    if marks_of(node):
        return {"metadata": {**metadata, "annotations": {CORDON: "true"}}}
    return {"metadata": {**metadata, **({"annotations": {CORDON: None}} if ours else {})}, "spec": {"unschedulable": None}}


@dataclass(frozen=True, slots=True)
class Cordons:
    """The record of one cluster. `api` connects on demand; `node_of` returns the name of a host's Node."""

    path: Path
    api: Callable[[], Api]
    groups: Mapping[str, Sequence[str]]
    node_of: Callable[[str], str]

    @contextmanager
    def around(self, command: Command) -> Iterator[None]:
        """Write the record before a run of Kubespray and update it after success; a failed or killed run leaves it."""
        nodes = [self.node_of(host) for host in cordoned_by(command, self.groups)]
        if nodes:
            self.begin(nodes)
        yield
        if nodes:
            self.end(nodes)

    def begin(self, nodes: Sequence[str]) -> None:
        """Uncordon the Nodes that a killed run left cordoned, then record which of these Nodes are schedulable.

        Raises:
            RunError: The API server does not answer, or the record cannot be read or written.
        """
        record = self._read()
        found = self._uncordon(record["taking"])
        taking = [name for name in nodes if name in found and not is_cordoned(found[name])]
        unfinished = [name for name in dict.fromkeys((*record["unfinished"], *record["taking"], *nodes)) if name in found]
        self._write(taking, unfinished)

    def end(self, nodes: Sequence[str]) -> None:
        """Record that a run has finished these Nodes."""
        self._write([], [name for name in self._read()["unfinished"] if name not in nodes])

    def restore(self) -> None:
        """Uncordon the Nodes that a killed run left cordoned."""
        record = self._read()
        if record["taking"]:
            self._uncordon(record["taking"])
            self._write([], [*record["unfinished"], *record["taking"]])

    def _uncordon(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Remove the cordons of a killed run; return all Nodes after the change."""
        api = self.api()
        found = read_nodes(api)

        def change(name: str) -> None:
            found[name] = change_node(api, found[name], uncordon_patch)

        for_each([name for name in names if name in found], change)
        return found

    def _read(self) -> dict[str, list[str]]:
        return read_cordon_record(self.path)

    def _write(self, taking: Sequence[str], unfinished: Sequence[str]) -> None:
        if not taking and not unfinished:
            self.path.unlink(missing_ok=True)
            return
        write_atomic(self.path, json.dumps({"taking": list(taking), "unfinished": sorted(set(unfinished))}) + "\n")


def read_cordon_record(path: Path) -> dict[str, list[str]]:
    """Return the record of an interrupted run; empty lists without one.

    Raises:
        RunError: The file is damaged, so that the owner of a cordon is unknown.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {name: [str(node) for node in record[name]] for name in ("taking", "unfinished")}
    except FileNotFoundError:
        return {"taking": [], "unfinished": []}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{path} cannot be read ({error}): the Nodes that an interrupted upgrade cordoned are unknown"
        fix = f"run `kubectl get nodes`, `kubectl uncordon` those that were cordoned by the upgrade, `rm {path}`, and run this again"
        raise RunError(what, fix=fix) from error
