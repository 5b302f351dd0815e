"""What a verb on one host does under the cluster's lock: read, judge, show, ask, edit hosts.yaml, run, edit hosts.yaml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer
import yaml

from primus_bootstrap.cli.console import emit, emit_json, say
from primus_bootstrap.cli.day2 import make_node_plan, run_and_report, show_change
from primus_bootstrap.cli.run_verbs import need_terminal
from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.engine.contact import why_silent
from primus_bootstrap.engine.history import last_report
from primus_bootstrap.engine.hostkeys import fingerprint, forget_host_keys, offered_key, pin_host_keys, pinned_key, replace_pin
from primus_bootstrap.engine.plan import TargetHost
from primus_bootstrap.inventory.edit.draft import (
    OWNER_RULE,
    Draft,
    HostsText,
    judge_draft,
    read_hosts_text,
    set_own_files_aside,
    write_draft,
)
from primus_bootstrap.inventory.edit.host_edits import NewHost, direct_groups, host_variables, names_in, with_host, with_value, without_host
from primus_bootstrap.inventory.load import validate
from primus_bootstrap.inventory.rules.day2_nodes import check_joining, inherited
from primus_bootstrap.inventory.source.variable_files import read_variable_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from primus_bootstrap.engine.lock import HeldLock
    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.engine.run import Options
    from primus_bootstrap.inventory.cluster import Cluster

ADD, REMOVE, REPLACE = "day2/add_node.yml", "day2/remove_node.yml", "day2/replace_node.yml"
_STOP = "stop"  # the phase that runs on the host that leaves
_SECRETS_LEFT = "the disk of {host} still holds the cluster's secrets (munge, the shared file system): wipe it, or renew them"


@dataclass(frozen=True, slots=True)
class Change:
    """A verb on one host: the cluster while it runs, and the edits of hosts.yaml before its first step and after its last.

    `dead` says that the host that leaves does not answer, so nothing is stopped on it.
    """

    cluster: Cluster
    subject: TargetHost
    options: Options
    before: Draft | None = None
    after: Draft | None = None
    dead: bool = False

    @property
    def leaving(self) -> str:
        """The host that is taken out, if one is."""
        return (self.subject.old or self.subject.node) if self.after else ""


def load(path: Path, options: Options) -> Cluster:
    """Read the cluster with the passwords of the run; variable files may wait for a host that is to come, or have lost theirs.

    Raises:
        InventoryError: with every problem found.
    """
    password = options.vault_password or None
    result = validate(path, vault_password_file=options.vault_password_file, ask_vault_pass=password, forgive=OWNER_RULE)
    if result.cluster is None:
        raise InventoryError(result.problems)
    return result.cluster


def judge(file: HostsText, after: str, options: Options, *, removes: bool = False) -> Draft:
    """Judge an edited hosts.yaml with the passwords of the run."""
    password = options.vault_password or None
    return judge_draft(file, after, vault_password_file=options.vault_password_file, ask_vault_pass=password, removes=removes)


def host_named(cluster: Cluster, name: str) -> str:
    """Return the name of a host that hosts.yaml has.

    Raises:
        PlanError: it has none of that name.
    """
    return _known(cluster.groups["all"], name)


def _known(known: Collection[str], name: str) -> str:
    if name not in known:
        near = nearest(name, known)
        raise PlanError(f"hosts.yaml has no host {name}", fix=f"did you mean {near}?" if near else "name a host of hosts.yaml")
    return name


def added(  # noqa: PLR0913 - the options of the verb
    path: Path, name: str, options: Options, *, address: str, groups: Sequence[str], like: str, variables: Sequence[str]
) -> Change:
    """Return what `node add` changes: hosts.yaml, where it does not have the host already, and the host.

    The file is judged once, with the new host in it: judging takes longer the larger the cluster is.

    Raises:
        PlanError: the host cannot be added, or is there already and differs.
        InventoryError: the file is wrong, or would be.
    """
    options = replace(options, extra_vars=(f"node={name}",))
    try:
        file = read_hosts_text(path)
        known_groups, known_hosts = names_in(file.text)
    except PlanError:
        load(path, options)  # says what is wrong with each line
        raise
    wanted = [group for given in groups for group in given.split(",") if group]
    if like:
        wanted += direct_groups(file.text, _known(known_hosts, like))
    new = NewHost(name, tuple(dict.fromkeys(wanted)), _address(address) | _values(variables))
    if name in known_hosts:
        cluster = load(path, options)
        _check_same(cluster, new)
        return Change(cluster, TargetHost(name), options)
    check_joining(new.groups, known_groups)
    try:
        before = judge(file, with_host(file.text, new), options)
    except (InventoryError, PlanError):
        load(path, options)  # where it was wrong before, these are the lines to mend
        raise
    return Change(before.cluster, TargetHost(name), options, before=before)


def replaced(cluster: Cluster, old: str, new: str, options: Options, *, successor: tuple[str, Sequence[str]] | None) -> Change:
    """Return what `node replace` changes: the new host comes before the run, and the old one goes after it.

    Args:
        cluster: hosts.yaml as it is.
        old: the host that leaves.
        new: the host that takes its place.
        options: those of the run.
        successor: address and variables of the new host; None where hosts.yaml has it already.
    """
    file = read_hosts_text(cluster.path)
    before = None
    if successor:
        address, variables = successor
        before = judge(file, with_host(file.text, _inherited_host(file, old, new, address=address, variables=variables)), options)
        file = replace(file, text=before.after)
    after = judge(file, without_host(file.text, old), options, removes=True)
    return Change(before.cluster if before else cluster, TargetHost(new, old), options, before=before, after=after)


def _inherited_host(file: HostsText, old: str, new: str, *, address: str, variables: Sequence[str]) -> NewHost:
    """Return the host that takes the place of another: in its groups, with those of its variables that are not of one machine."""
    own = inherited(host_variables(file.text, old)) | inherited(_file_variables(file.path, old))
    return NewHost(new, direct_groups(file.text, old), _address(address) | own | _values(variables))


def _check_same(cluster: Cluster, new: NewHost) -> None:
    """Refuse to add a host that is there already with other groups or variables.

    Raises:
        PlanError: what differs.
    """
    of_host = next(one.groups for one in cluster.hosts if one.name == new.name)
    there = cluster.view.variables(new.name)
    differs = [f"group {name}" for name in new.groups if name not in of_host]
    differs += [name for name, value in new.variables.items() if name not in there or there[name] != value]
    if differs:
        fix = f"edit hosts.yaml and apply --limit {new.name}, or remove it first (node remove), or choose another name"
        raise PlanError(f"{new.name} is in hosts.yaml already, and differs in: {', '.join(differs)}", fix=fix)


def groups_of(cluster: Cluster, name: str) -> tuple[str, ...]:
    """Return the groups of a host."""
    return tuple(next(one.groups for one in cluster.hosts if one.name == name))


def leaving_variables(cluster: Cluster, wait_s: int | None, *, force: bool, dead: bool = False) -> tuple[str, ...]:
    """Return what a playbook that takes a host out has to know besides its name; with `force` nobody is waited for, unless told to."""
    wait_s = 0 if wait_s is None and force else wait_s
    wait = (f"slurm_drain_wait_s={wait_s}", f"kube_drain_wait_s={wait_s}") if wait_s is not None else ()
    forced = ("slurm_drain_force=true", "kube_drain_force=true") if force else ()
    return (f"confirm={cluster.name}", *wait, *forced, *(("dead=true",) if dead else ()))


def check_answers(cluster: Cluster, host: str, *, dead: bool) -> None:
    """Refuse to wait for a host that does not answer, and to stop nothing on one that does.

    Raises:
        PlanError: it does not answer, and is not said to be dead.
    """
    if dead:
        return
    for pin in pin_host_keys(cluster, (host,)):
        say(f"host key of {pin.host} ({pin.address}): {pin.key_type} {pin.fingerprint}, pinned")
    if reason := why_silent(cluster, host):
        fix = "bring it up, or add --dead: nothing is stopped on it then, and Slurm runs its jobs elsewhere"
        raise PlanError(f"{host} does not answer: {reason}", fix=fix)


def accept_key(cluster: Cluster, host: str, options: Options, *, address: str, given: str) -> Change:
    """Pin the key of a reinstalled host that a person vouches for; return what is left to do.

    Raises:
        PlanError: it does not answer, it shows another key than the given one, or nobody can be asked.
    """
    file = read_hosts_text(cluster.path)
    text = with_value(file.text, host, "ansible_host", address) if address and address != cluster.connection(host).address else file.text
    moved = judge(file, text, options) if text != file.text else None
    at = moved.cluster if moved else cluster
    offered = offered_key(at, host)
    if not offered:
        raise PlanError(f"{host} shows no host key: it does not answer", fix="bring it up, then the same again")
    if offered != pinned_key(at, host) or at.connection(host).host_key not in ("", offered):
        _vouch(at, host, offered, given)
        if at.connection(host).host_key:
            text = with_value(text, host, "host_key", offered)
        replace_pin(at, host, offered)
    before = judge(file, text, options) if text != file.text else None
    return Change(before.cluster if before else cluster, TargetHost(host), options, before=before)


def _vouch(cluster: Cluster, host: str, offered: str, given: str) -> None:
    """Let a key pass that was given, or that a person confirms."""
    shown, before = _shown(offered), pinned_key(cluster, host)
    if given:
        if given.split()[:2] != offered.split()[:2]:
            raise PlanError(
                f"{host} shows another key than --host-key: {shown}", fix="compare on its console: ssh-keygen -lf the .pub file"
            )
        return
    say(f"{host} was known by {_shown(before)}" if before else f"no key of {host} is pinned")
    say(f"it shows now {shown}")
    need_terminal("node replace", fix=f"give the new key if it is the machine's own: --host-key '{offered}'")
    typer.confirm(
        f"Is this the key of the reinstalled {host} (its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub)?", abort=True, err=True
    )


def _shown(key: str) -> str:
    key_type, base64_key = key.split()
    return f"{key_type} {fingerprint(base64_key)}"


def carry_out(change: Change, playbook: str, ask: Callable[[], None] | None, *, lock: HeldLock, as_json: bool) -> Report | None:
    """Show, ask, edit, run, edit; without a report where no host had to be touched.

    The new host is in hosts.yaml before the first host is touched, and the old one stays there until the run has ended well: a
    verb that is killed or fails leaves a file from which the same command goes on. Where no host was touched, the edit is taken back.
    """
    made = make_node_plan(change.cluster, playbook, change.subject, without=(_STOP,) if change.dead else ())
    diffs = [draft.diff for draft in (change.before, change.after) if draft]
    show_change("\n".join(diffs), change.cluster, None if as_json else made)
    if ask:
        ask()
    if change.before:
        write_draft(change.before)
    # The old host leaves only where the new one came, and it is stopped only where its jobs have ended.
    options = replace(change.options, chained=True)
    try:
        report = run_and_report(change.cluster, made, options, as_json=as_json, lock=lock) if made else None
    except PlanError:
        if change.before:
            write_draft(change.before.reverse)
        raise
    kept: tuple[Path, ...] = ()
    if change.after and not (report and report.exit_code):
        write_draft(change.after)
        forget_host_keys(change.cluster, (change.leaving,))
        kept = set_own_files_aside(change.cluster.path, change.leaving)
        left = [_SECRETS_LEFT.format(host=change.leaving)] if change.dead else []
        say("\n".join([f"{change.leaving} left the cluster, and hosts.yaml", *left, *(f"kept: {path}" for path in kept)]))
    if as_json:
        emit_json(report.to_json() if report else {"left": change.leaving})
    return report


def exit_code(report: Report | None) -> int:
    """Return what the verb ends with."""
    return report.exit_code if report else 0


def say_gone(cluster: Cluster, host: str, verb: str, *, as_json: bool) -> None:
    """Say that there is nothing to do for a host that left; finish what a kill in the last step left.

    Raises:
        PlanError: no run took such a host out: the name is a slip.
    """
    kept = set_own_files_aside(cluster.path, host)
    last = last_report(cluster.state_dir, verb=verb)
    if not kept and (last is None or last.exit_code):
        host_named(cluster, host)
    if as_json:
        emit_json({"left": host})
    else:
        emit(f"nothing to do: {host} left the cluster, and hosts.yaml" + (f" (run {last.run})" if last else ""))


def _address(address: str) -> dict[str, Any]:
    return {"ansible_host": address} if address else {}


def _values(given: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` words; a value is YAML, so that a number is one.

    Raises:
        PlanError: a word that is not of this form.
    """
    found = {}
    for word in given:
        name, equals, value = word.partition("=")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise PlanError(f"--var {name}: its value is not YAML", fix="put it in quotes: --var 'name=\"text\"'") from error
        if not equals or not name.strip():
            raise PlanError(f"--var {word}: not key=value", fix="--var name=value")
    return found


def _file_variables(path: Path, host: str) -> dict[str, yaml.Node]:
    """Return what the files of a host in `host_vars/` set."""
    files = read_variable_files(path.parent, str(path.parent), decrypt=None)
    if sealed := [shown for _, shown, owner in files.sealed if owner == host]:
        raise PlanError(f"{sealed[0]} is under Vault", fix="move what both hosts need to a group of both, then the same again")
    return {one.name: one.node for one in files.definitions if one.kind == "host" and host in one.targets}
