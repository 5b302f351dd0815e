"""The steps of `node add`, `node remove` and `node replace`: edit hosts.yaml, confirm, run the playbook, edit hosts.yaml again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer
import yaml

from primus_bootstrap.cli.console import emit, emit_json, say
from primus_bootstrap.cli.day2 import find_host, find_name, make_node_plan, run_and_report
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.cli.run_verbs import need_terminal
from primus_bootstrap.core.errors import InventoryError, PlanError, UsageError
from primus_bootstrap.engine.history import last_report
from primus_bootstrap.engine.hostkeys import fingerprint, forget_host_keys, offered_key, pin_host_keys, pinned_key, replace_pin
from primus_bootstrap.engine.plan import TargetHost
from primus_bootstrap.engine.ssh import unreachable_reason
from primus_bootstrap.inventory.edit.draft import (
    OWNER_RULE,
    Draft,
    HostsText,
    check_draft,
    disable_host_files,
    read_hosts_text,
    write_draft,
)
from primus_bootstrap.inventory.edit.host_edits import NewHost, direct_groups, host_variables, names_in, with_host, with_value, without_host
from primus_bootstrap.inventory.load import validate
from primus_bootstrap.inventory.rules.day2_nodes import check_grown, check_joining, inherited
from primus_bootstrap.inventory.source.source_map import host_name_fault
from primus_bootstrap.inventory.source.variable_files import read_variable_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from primus_bootstrap.engine.lock import HeldLock
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

ADD, REMOVE, REPLACE = "day2/add_node.yml", "day2/remove_node.yml", "day2/replace_node.yml"
_STOP = "stop"  # the phase that runs on the host to remove
_KEY_FORGOTTEN = (
    "the pinned host key of {host} was removed; if it joins again with plain ansible-playbook, first pin its key: "
    "primus-bootstrap probe hosts.yaml --limit {host}"
)
_SECRETS_LEFT = "the disk of {host} still contains secrets of the cluster (munge, the shared file system): wipe it, or rotate them"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one host: the cluster during the run, and the edits of hosts.yaml before and after it.

    `dead`: the host to remove does not answer, so nothing is stopped on it.
    """

    cluster: Cluster
    target: TargetHost
    options: Options
    before: Draft | None = None
    after: Draft | None = None
    dead: bool = False

    @property
    def removed(self) -> str:
        """The host to remove, or an empty string."""
        return (self.target.old or self.target.node) if self.after else ""


def load(path: Path, options: Options) -> Cluster:
    """Load the cluster; variable files of hosts that do not exist are allowed.

    Raises:
        InventoryError: hosts.yaml has problems.
    """
    password = options.vault_password or None
    result = validate(path, vault_password_file=options.vault_password_file, ask_vault_pass=password, ignore_rules=OWNER_RULE)
    if result.cluster is None:
        raise InventoryError(result.problems)
    return result.cluster


def check_edit(file: HostsText, after: str, options: Options, *, removes: bool = False) -> Draft:
    """Check an edited hosts.yaml, with the passwords of the run."""
    password = options.vault_password or None
    return check_draft(file, after, vault_password_file=options.vault_password_file, ask_vault_pass=password, removes=removes)


def make_addition(  # noqa: PLR0913 - the options of the verb
    path: Path, name: str, options: Options, *, address: str, groups: Sequence[str], like: str, variables: Sequence[str]
) -> Change:
    """Return the change of `node add`; hosts.yaml is not edited if it already has the host.

    The file is checked once, with the new host: the check of a large cluster takes long.

    Raises:
        UsageError: A group or a value does not exist.
        PlanError: The host cannot be added, or it exists and differs.
        InventoryError: hosts.yaml has problems, or would have with the new host.
    """
    _check_host_name(name)
    options = replace(options, extra_vars=(f"node={name}",))
    try:
        file = read_hosts_text(path)
        known_groups, known_hosts = names_in(file.text)
    except PlanError:
        load(path, options)  # raises an error with the lines
        raise
    new_groups = [group for names in groups for group in names.split(",") if group]
    if like:
        new_groups += direct_groups(file.text, find_name(like, known_hosts))
    new = NewHost(name, tuple(dict.fromkeys(new_groups)), _address(address) | _values(variables))
    if name in known_hosts:
        cluster = load(path, options)
        _check_same(cluster, new)
        return Change(cluster, TargetHost(name), options)
    check_joining(new.groups, known_groups)
    try:
        before = check_edit(file, with_host(file.text, new), options)
    except (InventoryError, PlanError):
        load(path, options)  # reports the problems that the file had before the edit
        raise
    check_grown(before.cluster, name)
    return Change(before.cluster, TargetHost(name), options, before=before)


def _check_host_name(name: str) -> None:
    """Check the name of a new host.

    Raises:
        UsageError: It cannot be the name of a host.
    """
    if fault := host_name_fault(name):
        raise UsageError(fault[0], fix=fault[1])


def make_replacement(cluster: Cluster, old: str, new: str, options: Options, *, successor: tuple[str, Sequence[str]] | None) -> Change:
    """Return the change of `node replace`: add the new host before the run, and remove the old one after it.

    Args:
        cluster: The cluster before the change.
        old: The host to remove.
        new: The host that replaces it.
        options: The options of the run.
        successor: Address and variables of the new host; None if hosts.yaml already has it.
    """
    file = read_hosts_text(cluster.path)
    before = None
    if successor:
        _check_host_name(new)
        address, variables = successor
        before = check_edit(file, with_host(file.text, _inherited_host(file, old, new, address=address, variables=variables)), options)
        file = replace(file, text=before.after)
    after = check_edit(file, without_host(file.text, old), options, removes=True)
    return Change(before.cluster if before else cluster, TargetHost(new, old), options, before=before, after=after)


def _inherited_host(file: HostsText, old: str, new: str, *, address: str, variables: Sequence[str]) -> NewHost:
    """Return a host with the groups of another, and its variables except those of the machine (address, host key, serial number)."""
    old_variables = inherited(host_variables(file.text, old)) | inherited(_file_variables(file.path, old))
    return NewHost(new, direct_groups(file.text, old), _address(address) | old_variables | _values(variables))


def _check_same(cluster: Cluster, new: NewHost) -> None:
    """Check that an existing host has the requested groups and variables.

    Raises:
        PlanError: It differs.
    """
    groups = groups_of(cluster, new.name)
    variables = cluster.view.variables(new.name)
    differs = [f"group {name}" for name in new.groups if name not in groups]
    differs += [name for name, value in new.variables.items() if name not in variables or variables[name] != value]
    if differs:
        fix = f"edit hosts.yaml and apply --limit {new.name}, or remove the host first (node remove), or choose another name"
        raise PlanError(f"{new.name} is already in hosts.yaml and differs in: {', '.join(differs)}", fix=fix)


def groups_of(cluster: Cluster, name: str) -> tuple[str, ...]:
    """Return the groups of a host."""
    return tuple(next(host.groups for host in cluster.hosts if host.name == name))


def removal_variables(cluster: Cluster, wait_s: int | None, *, force: bool, dead: bool = False) -> tuple[str, ...]:
    """Return the extra variables for removing a host; with `force` the default wait is 0 s."""
    wait_s = 0 if wait_s is None and force else wait_s
    wait = (f"slurm_drain_wait_s={wait_s}", f"kube_drain_wait_s={wait_s}") if wait_s is not None else ()
    forced = ("slurm_drain_force=true", "kube_drain_force=true") if force else ()
    return (f"confirm={cluster.name}", *wait, *forced, *(("dead=true",) if dead else ()))


def check_answers(cluster: Cluster, host: str, *, dead: bool) -> None:
    """Check that a host answers, unless it is declared dead.

    Raises:
        PlanError: It does not answer.
    """
    if dead:
        return
    for pin in pin_host_keys(cluster, (host,)):
        say(f"pinned the host key of {pin.host} ({pin.address}): {pin.key_type} {pin.fingerprint}")
    if reason := unreachable_reason(cluster, host):
        fix = "start it, or add --dead: then nothing is stopped on it, and Slurm runs its jobs on other hosts"
        raise PlanError(f"{host} does not answer: {reason}", fix=fix)


def accept_key(cluster: Cluster, host: str, options: Options, *, address: str, expected: str) -> Change:
    """Pin the new key of a reinstalled host, which `expected` or a person confirms; return the remaining change.

    Raises:
        PlanError: The host does not answer, its key is not the expected one, or there is no terminal for the question.
    """
    file = read_hosts_text(cluster.path)
    text = with_value(file.text, host, "ansible_host", address) if address and address != cluster.connection(host).address else file.text
    if text != file.text:
        cluster = check_edit(file, text, options).cluster
    key = offered_key(cluster, host)
    if not key:
        raise PlanError(f"{host} does not answer, so its host key is unknown", fix="start it, then run the same command again")
    if key != pinned_key(cluster, host) or cluster.connection(host).host_key not in ("", key):
        _confirm_key(cluster, host, key, expected)
        if cluster.connection(host).host_key:
            text = with_value(text, host, "host_key", key)
        replace_pin(cluster, host, key)
    before = check_edit(file, text, options) if text != file.text else None
    return Change(before.cluster if before else cluster, TargetHost(host), options, before=before)


def _confirm_key(cluster: Cluster, host: str, key: str, expected: str) -> None:
    """Compare the key of a host with the expected one, or ask a person."""
    key_text, pinned = _key_text(key), pinned_key(cluster, host)
    if expected:
        if expected.split()[:2] != key.split()[:2]:
            fix = "on the host's console, compare: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
            raise PlanError(f"the key of {host} is not the one in --host-key: {key_text}", fix=fix)
        return
    say(f"pinned key of {host}: {_key_text(pinned)}" if pinned else f"no key of {host} is pinned")
    say(f"its key now: {key_text}")
    need_terminal("node replace", fix=f"if it is the key of the machine, add --host-key '{key}'")
    typer.confirm(
        f"Is this the key of the reinstalled {host} (its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub)?", abort=True, err=True
    )


def _key_text(key: str) -> str:
    key_type, base64_key = key.split()
    return f"{key_type} {fingerprint(base64_key)}"


def run_change(change: Change, playbook: str, ask: Callable[[], None] | None, *, lock: HeldLock, as_json: bool) -> Report | None:
    """Show the change, ask, edit hosts.yaml, run the playbook, and edit hosts.yaml again; return None if no host has work.

    The new host is added before the run, and the old one removed after a successful run. After a failure or a kill, the same
    command therefore continues. If the run was refused before it contacted a host, the edit is reverted.
    """
    plan = make_node_plan(change.cluster, playbook, change.target, without=(_STOP,) if change.dead else ())
    if diff := "\n".join(draft.diff for draft in (change.before, change.after) if draft):
        say(f"{diff}\n")
    if plan and not as_json:
        print_plan(change.cluster, plan, verb=change.options.verb)
    if ask:
        ask()
    if change.before:
        write_draft(change.before)
    # Each phase depends on the previous ones: the old host is stopped only after the new one is ready and its jobs have ended.
    options = replace(change.options, chained=True, complete=True)
    try:
        report = run_and_report(change.cluster, plan, options, as_json=as_json, lock=lock) if plan else None
    except PlanError:
        if change.before:
            write_draft(change.before.reverse)
        raise
    if change.after and not (report and report.exit_code):
        write_draft(change.after)
        forget_host_keys(change.cluster, (change.removed,))
        renamed = disable_host_files(change.cluster.path, change.removed)
        forgotten = with_inventory(_KEY_FORGOTTEN.format(host=change.removed), change.cluster.path)
        warning = [_SECRETS_LEFT.format(host=change.removed)] if change.dead else [forgotten]
        say("\n".join([f"removed {change.removed} from the cluster and hosts.yaml", *warning, *(f"renamed: {path}" for path in renamed)]))
    if as_json:
        emit_json(report.to_json() if report else {"left": change.removed})
    return report


def exit_code(report: Report | None) -> int:
    """Return the exit code of the verb."""
    return report.exit_code if report else 0


def report_already_removed(cluster: Cluster, host: str, verb: str, *, as_json: bool) -> None:
    """Report that a host is already removed; rename its variable files if a kill prevented that.

    Raises:
        UsageError: No run removed such a host, so the name is a typo.
    """
    renamed = disable_host_files(cluster.path, host)
    last = last_report(cluster.state_dir, verb=verb)
    if not renamed and (last is None or last.exit_code):
        find_host(cluster, host)
    if as_json:
        emit_json({"left": host})
    else:
        emit(f"nothing to do: {host} is already removed" + (f" (run {last.run})" if last else ""))


def _address(address: str) -> dict[str, Any]:
    return {"ansible_host": address} if address else {}


def _values(words: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` words; the value is YAML, so numbers are numbers.

    Raises:
        UsageError: A word has another form.
    """
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            values[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--var {name}: the value is not valid YAML", fix="quote it: --var 'name=\"text\"'") from error
        if not equals or not name.strip():
            raise UsageError(f"--var {word}: not key=value", fix="use --var name=value")
    return values


def _file_variables(path: Path, host: str) -> dict[str, yaml.Node]:
    """Return the variables of a host's files in `host_vars/`."""
    files = read_variable_files(path.parent, str(path.parent), decrypt=None)
    if encrypted := [file.display_path for file in files.encrypted if file.owner == host]:
        fix = "move the variables that both hosts need to a group of both, then run the same command again"
        raise PlanError(f"{encrypted[0]} is encrypted with Vault", fix=fix)
    return {item.name: item.node for item in files.definitions if item.kind == "host" and host in item.targets}
