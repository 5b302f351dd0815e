"""Read a training job from a file of `workload_` variables, and check it against the cluster before a host is contacted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError, PlanError, Problem, UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory import job_rules
from primus_bootstrap.inventory.cluster import Origin
from primus_bootstrap.inventory.schema.definition_checks import check_definitions
from primus_bootstrap.inventory.schema.names import explain_unknown_variable, is_known_variable
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.source_map import Definition
from primus_bootstrap.inventory.source.vault import Vault
from primus_bootstrap.inventory.source.yaml_source import read_source
from primus_bootstrap.inventory.source.yaml_values import entries, line_of, value_of
from primus_bootstrap.launch.programs.settings_file import refuse_primus_experiment
from primus_bootstrap.launch.watch.job_request import InventoryFacts, read_request, variable_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.core.structured import Issue
    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.launch.watch.job_request import JobRequest

ROLE = "workload"
_PREFIX = f"{ROLE}_"
_USER = f"{ROLE}_user"
_HOST_GROUPS = ("workload_node", "kube_node", "kueue")  # kueue has the variables of the queues


@dataclass(frozen=True, slots=True)
class JobFile:
    """The variables that a job's file and `-e` set, and where each is written."""

    values: Mapping[str, Any]
    origins: Mapping[str, Origin]


def find_job(name: str) -> Path:
    """Return the file of a job, by its path or by the name of a shipped job.

    Raises:
        UsageError: There is no such file.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = {file.stem: file for file in sorted(content.jobs_dir().glob("*.yml"))}
    if name in shipped:
        return shipped[name]
    near = nearest(name, shipped)
    fix = f"did you mean {near}?" if near else f"give a file, or choose from: {', '.join(shipped)}"
    raise UsageError(f"there is no job {name}", fix=fix)


def read_job(path: Path, extra: Sequence[str] = (), options: Mapping[str, str] | None = None) -> JobFile:
    """Read a job's file, then each `key=value` or `@FILE` of `-e`, then the options of the command; later values win.

    `options` are the texts of options such as `--user`. The option `--user` sets the variable `workload_user`.

    Raises:
        InventoryError: With every problem.
        UsageError: A word of `-e` is neither `key=value` nor `@FILE`, or a file is an experiment of AMD Primus.
    """
    definitions: list[Definition] = []
    problems: list[Problem] = []
    for word in extra:
        if not word.startswith("@") and "=" not in word:
            raise UsageError(f"--extra-vars {word}: neither @FILE nor key=value", fix="-e @values.yml, or -e workload_nodes=4")
    for word in (f"@{path}", *extra):
        for found in _from_file(Path(word[1:]).expanduser()) if word.startswith("@") else _from_word(word):
            if isinstance(found, Definition):
                definitions.append(found)
            else:
                problems.append(found)
    definitions += [_from_option(option, value) for option, value in (options or {}).items() if value]
    own = [definition for definition in definitions if definition.name.startswith(_PREFIX)]
    problems += [_foreign(definition) for definition in definitions if not definition.name.startswith(_PREFIX)]
    found_problems, deferred = check_definitions(own, Vault())
    problems += found_problems
    problems += [
        _problem(value.origin, f"{value.variable} is {value.why}", "write the value itself; only hosts.yaml may contain templates")
        for value in deferred
    ]
    if problems:
        words = {definition.origin.file for definition in definitions if not definition.origin.line}  # they have no lines
        raise InventoryError([replace(problem, line=0) if problem.file in words else problem for problem in problems])
    return JobFile(
        {definition.name: value_of(definition.node) for definition in own}, {definition.name: definition.origin for definition in own}
    )


def whole_job(cluster: Cluster, job: JobFile) -> dict[str, Any]:
    """Return every variable of a job: from the job's file, else from hosts.yaml for the service host, else the role's default."""
    options = {name: option.default for name, option in load_options().items() if option.owner == ROLE}
    watchers = cluster.groups.get("primus_watch") or ()
    shared = cluster.view.variables(watchers[0]) if watchers else {}
    return {name: job.values.get(name, shared.get(name, default)) for name, default in options.items()}


def inventory_facts(cluster: Cluster) -> InventoryFacts:
    """Return the part of the cluster that a job depends on."""
    hosts = {host: cluster.view.variables(host) for group in _HOST_GROUPS for host in cluster.groups.get(group, ())}
    return InventoryFacts(cluster.groups, hosts)


def check_job(cluster: Cluster, job: JobFile, display_path: str) -> JobRequest:
    """Return the job, checked by the role's own rules.

    Raises:
        InventoryError: The cluster cannot run it; with every reason.
    """
    variables = whole_job(cluster, job)
    issues = job_rules.find_issues(variables, inventory_facts(cluster))
    if issues:
        raise InventoryError(
            [_problem(job.origins.get(variable_of(issue), Origin(display_path, 0)), str(issue), _fix(issue, cluster)) for issue in issues]
        )
    if unknown := _unknown_user(cluster, str(variables[_USER])):
        raise InventoryError([_problem(job.origins.get(_USER, Origin(display_path, 0)), *unknown)])
    return read_request(variables)


def _unknown_user(cluster: Cluster, user: str) -> tuple[str, str] | None:
    """Return the problem and the fix for a user who may not have jobs; None if hosts.yaml does not list the accounts."""
    names = _accounts(cluster)
    if not names or user in names:
        return None
    near = nearest(user, names)
    hint = f"did you mean {near}? " if near else ""
    what = f"{_USER}: {user} is not an account that may have jobs"
    return what, f"{hint}choose from: {', '.join(names)}; or add it to users_groups_accounts and apply the phase baseline"


def _fix(issue: Issue, cluster: Cluster) -> str:
    """Return the fix of an issue; for a missing user the option of `workload submit`, with the accounts that may have jobs."""
    if variable_of(issue) != _USER:
        return issue.fix
    names = _accounts(cluster)
    if not names:
        return "add --user NAME to the command, or set workload_user in the job's file; NAME is an account of users_groups_accounts"
    others = f" (or one of: {', '.join(names[1:])})" if len(names) > 1 else ""
    return f"add --user {names[0]}{others} to the command, or set workload_user in the job's file"


def _accounts(cluster: Cluster) -> list[str]:
    """Return the accounts of hosts.yaml that may have jobs; none if their list cannot be read, or has no accounts."""
    watchers = cluster.groups.get("primus_watch") or ()
    variables = cluster.view.variables(watchers[0]) if watchers else {}
    try:
        found, of_directory = variables.get("users_groups_accounts"), variables.get("primus_watch_accounts")
    except PlanError:  # one is a template or a Vault value that only a run can resolve
        return []
    accounts = [account for account in (found if isinstance(found, list) else ()) if isinstance(account, dict) and "name" in account]
    names = [str(account["name"]) for account in accounts if not account.get("sudo_rules") and account.get("state") != "absent"]
    return [*names, *map(str, of_directory if isinstance(of_directory, list) and names else ())]


def _problem(origin: Origin, what: str, fix: str) -> Problem:
    return Problem(origin.file, origin.line, what, fix, "job")


def _from_file(path: Path) -> Iterator[Definition | Problem]:
    display_path = str(path)
    source = read_source(path, display_path, decrypt=None)
    yield from source.problems
    if source.needs_password:
        fix = "decrypt it; a job passes secrets by file, see docs/workloads.md"
        yield _problem(Origin(display_path, 0), "the file is encrypted with Ansible Vault", fix)
    if isinstance(source.node, yaml.MappingNode):
        for key, value in entries(source.node):
            if key.value == "modules":
                refuse_primus_experiment({"modules": value_of(value)}, display_path)
            yield Definition(str(key.value), value, Origin(display_path, line_of(key)), "group", ("all",), from_file=True)
    elif source.node is not None:
        yield _problem(Origin(display_path, line_of(source.node)), "not a mapping of variables", "write `name: value` lines")


def _from_word(word: str) -> Iterator[Definition | Problem]:
    name, _, value = word.partition("=")
    origin = Origin(f"-e {word}", 0)
    try:
        node = yaml.compose(value, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        yield _problem(origin, "the value is not YAML", "quote it")
        return
    yield Definition(name.strip(), node or _text_node(""), origin, "group", ("all",))


def _from_option(option: str, value: str) -> Definition:
    return Definition(f"{_PREFIX}{option.removeprefix('--')}", _text_node(value), Origin(f"{option} {value}", 0), "group", ("all",))


def _text_node(text: str) -> yaml.Node:
    mark = yaml.Mark("", 0, 0, 0, "", 0)
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, mark, mark)


def _foreign(definition: Definition) -> Problem:
    """Return the problem of a variable that is not one of the role."""
    name = definition.name
    what, fix = explain_unknown_variable(name)
    if not name.startswith(_PREFIX):
        near = nearest(name, [option for option in load_options() if option.startswith(_PREFIX)])
        what = f"{name} is not a variable of a job" if is_known_variable(name) else what
        fix = f"did you mean {near}?" if near else "set it in hosts.yaml; a job sets workload_ variables only"
    return Problem(definition.origin.file, definition.origin.line, what, fix, "unknown-variable")
