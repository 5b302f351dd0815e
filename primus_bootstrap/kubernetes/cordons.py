"""Which Nodes took pods before Kubespray cordoned them, so that an upgrade that is killed leaves none out of service for ever.

Kubespray drains and gives back what it finds in service: a Node that its killed run has cordoned it would upgrade undrained, and leave
cordoned. So what took pods is noted before each of its runs, in <state folder>/kubespray/cordons.json:

    taking       Nodes of the run under way that took pods before it
    unfinished   Nodes of that run and of earlier ones that none has brought to its end
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
    """Return the hosts whose Nodes a run of Kubespray cordons for a while: those of its limit, one after the other."""
    if command.playbook != _UPGRADE:
        return ()
    words = [word for word in re.split("[,:]", command.limit) if word]
    hosts = [host for word in words if not word.startswith("!") for host in groups.get(word, (word,))]
    return tuple(dict.fromkeys(host for host in hosts if f"!{host}" not in words))


def give_back(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that takes the cordon of a killed run off; None where nothing is to be changed.

    While a mark of ours stands, the cordon becomes ours instead, and goes with the last mark.
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
    """The note of one cluster. `api` is called only where there is something to look at; `node_of` names a host's Node."""

    path: Path
    api: Callable[[], Api]
    groups: Mapping[str, Sequence[str]]
    node_of: Callable[[str], str]

    @contextmanager
    def around(self, command: Command) -> Iterator[None]:
        """Keep the note around a run of Kubespray; one that fails or is killed leaves it behind."""
        nodes = [self.node_of(host) for host in cordoned_by(command, self.groups)]
        if nodes:
            self.begin(nodes)
        yield
        if nodes:
            self.end(nodes)

    def begin(self, nodes: Sequence[str]) -> None:
        """Give back what a killed run left cordoned, then note which of these Nodes take pods.

        Raises:
            RunError: the API does not answer, or the note cannot be read or written.
        """
        noted = self._read()
        found = self._give_back(noted["taking"])
        taking = [name for name in nodes if name in found and not is_cordoned(found[name])]
        unfinished = [name for name in dict.fromkeys((*noted["unfinished"], *noted["taking"], *nodes)) if name in found]
        self._write(taking, unfinished)

    def end(self, nodes: Sequence[str]) -> None:
        """Note that a run has brought these Nodes to its end."""
        self._write([], [name for name in self._read()["unfinished"] if name not in nodes])

    def settle(self) -> None:
        """Give back what a killed run left cordoned, where nothing has to run."""
        noted = self._read()
        if noted["taking"]:
            self._give_back(noted["taking"])
            self._write([], [*noted["unfinished"], *noted["taking"]])

    def _give_back(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Take the cordons of a killed run off; return every Node as it is then."""
        api = self.api()
        found = read_nodes(api)

        def change(name: str) -> None:
            found[name] = change_node(api, found[name], give_back)

        for_each([name for name in names if name in found], change)
        return found

    def _read(self) -> dict[str, list[str]]:
        return read_note(self.path)

    def _write(self, taking: Sequence[str], unfinished: Sequence[str]) -> None:
        if not taking and not unfinished:
            self.path.unlink(missing_ok=True)
            return
        write_atomic(self.path, json.dumps({"taking": list(taking), "unfinished": sorted(set(unfinished))}) + "\n")


def read_note(path: Path) -> dict[str, list[str]]:
    """Return the note of a run that was cut short; empty lists where there was none.

    Raises:
        RunError: it is there and cannot be read, so that whose a cordon is cannot be told.
    """
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return {name: [str(one) for one in said[name]] for name in ("taking", "unfinished")}
    except FileNotFoundError:
        return {"taking": [], "unfinished": []}
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{path} cannot be read ({error}): which Nodes an upgrade that was cut short has cordoned is not known"
        fix = f"see `kubectl get nodes`, uncordon what takes no pods for no reason, remove {path}, then the same again"
        raise RunError(what, fix=fix) from error
