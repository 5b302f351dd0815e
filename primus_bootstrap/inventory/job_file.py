"""A training job as a file of `workload_` variables: read and judged before a host is contacted, as hosts.yaml is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError, PlanError, Problem
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.cluster import Origin
from primus_bootstrap.inventory.schema.definition_checks import judge_definitions
from primus_bootstrap.inventory.schema.names import is_known_variable
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.source_map import Definition
from primus_bootstrap.inventory.source.vault import Vault
from primus_bootstrap.inventory.source.yaml_source import read_source
from primus_bootstrap.inventory.source.yaml_values import entries, line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.inventory.cluster import Cluster

ROLE = "workload"
_PREFIX = f"{ROLE}_"
_ENDINGS = (".yml", ".yaml")
_HOST_GROUPS = ("workload_node", "kube_node", "kueue")  # the last one states the queues


@dataclass(frozen=True, slots=True)
class JobValues:
    """What was said of a job, and where each variable is written."""

    values: Mapping[str, Any]
    origins: Mapping[str, Origin]


def find_job(name: str) -> Path:
    """Return the file of a job: a path, or the name of one that is shipped.

    Raises:
        PlanError: there is none.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = {file.stem: file for file in sorted(content.jobs_dir().glob("*.yml"))}
    if name in shipped:
        return shipped[name]
    near = nearest(name, shipped)
    fix = f"did you mean {near}?" if near else f"give a file, or one of: {', '.join(shipped)}"
    raise PlanError(f"there is no job {name}", fix=fix)


def read_job(path: Path, extra: Sequence[str] = ()) -> JobValues:
    """Return what a file, and `key=value` or `@FILE` after it, say of a job; what comes later wins.

    Raises:
        InventoryError: with every problem found.
        PlanError: a further word is neither of the two.
    """
    definitions: list[Definition] = []
    problems: list[Problem] = []
    for word in extra:
        if not word.startswith("@") and "=" not in word:
            raise PlanError(f"--extra-vars {word}: neither @FILE nor key=value", fix="-e @values.yml, or -e workload_nodes=4")
    for word in (f"@{path}", *extra):
        found = _of_file(Path(word[1:]).expanduser()) if word.startswith("@") else _of_word(word)
        for one in found:
            (definitions if isinstance(one, Definition) else problems).append(one)  # type: ignore[arg-type]
    known = [one for one in definitions if one.name.startswith(_PREFIX)]
    problems += [_foreign(one) for one in definitions if not one.name.startswith(_PREFIX)]
    judged, deferred = judge_definitions(known, Vault())
    problems += judged
    problems += [
        Problem(
            one.origin.file, one.origin.line, f"{one.variable} is {one.why}", "write the value itself; hosts.yaml may hold templates", "job"
        )
        for one in deferred
    ]
    if problems:
        raise InventoryError(problems)
    return JobValues({one.name: value_of(one.node) for one in known}, {one.name: one.origin for one in known})


def whole_job(cluster: Cluster, said: JobValues) -> dict[str, Any]:
    """Return every variable of a job: as the job says, else hosts.yaml for the service host, else the role's default."""
    options = {name: option.default for name, option in load_options().items() if option.owner == ROLE}
    watchers = cluster.groups.get("primus_watch") or ()
    shared = cluster.view.variables(watchers[0]) if watchers else {}
    return {name: said.values.get(name, shared.get(name, default)) for name, default in options.items()}


def check_job(cluster: Cluster, said: JobValues, shown: str) -> dict[str, Any]:
    """Return every variable of a job that this cluster can run; the role's own judgement says whether it can.

    Raises:
        InventoryError: with everything that speaks against it.
    """
    job = whole_job(cluster, said)
    hosts = {host: cluster.view.variables(host) for group in _HOST_GROUPS for host in cluster.groups.get(group, ())}
    found = load_filters(ROLE).findings(job, cluster.groups, hosts)
    nowhere = Origin(shown, 0)
    places = [(said.origins.get(one.about, nowhere), one) for one in found]
    if places:
        raise InventoryError([Problem(origin.file, origin.line, one.what, one.fix, "job") for origin, one in places])
    return job


def _of_file(path: Path) -> Iterator[Definition | Problem]:
    shown = str(path)
    source = read_source(path, shown, decrypt=None)
    yield from source.problems
    if source.sealed:
        yield Problem(shown, 0, "is under Vault", "a job is no place for secrets: give them by a file, as docs/workloads.md says", "job")
    if source.node is not None and not isinstance(source.node, yaml.MappingNode):
        yield Problem(shown, line_of(source.node), "holds no mapping of variables", "write `name: value` lines", "job")
    elif source.node is not None:
        yield from _definitions(source.node, lambda key: Origin(shown, line_of(key)))


def _of_word(word: str) -> Iterator[Definition | Problem]:
    name, _, value = word.partition("=")
    origin = Origin(f"-e {word}", 0)
    try:
        node = yaml.compose(value, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        yield Problem(origin.file, 0, "the value is not YAML", "quote it", "job")
        return
    yield Definition(name.strip(), node or yaml.ScalarNode("tag:yaml.org,2002:str", ""), origin, "group", ("all",))


def _definitions(node: yaml.MappingNode, origin: Any) -> Iterator[Definition]:
    for key, value in entries(node):
        yield Definition(str(key.value), value, origin(key), "group", ("all",), from_file=True)


def _foreign(one: Definition) -> Problem:
    own = [name for name in load_options() if name.startswith(_PREFIX)]
    near = nearest(one.name, own)
    what = f"{one.name} is no variable of a job" if is_known_variable(one.name) else f"{one.name}: no role has this variable"
    fix = f"did you mean {near}?" if near else "a job sets workload_ variables; the others stand in hosts.yaml"
    return Problem(one.origin.file, one.origin.line, what, fix, "unknown-variable")
