"""The verbs of `bundle`: list, lock, download and check everything that an apply downloads. They contact no host."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_bootstrap import content
from primus_bootstrap.bundle import charts, lock_file
from primus_bootstrap.bundle import folder as bundle_folder
from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import NOT_LOCKED, BundleError, Use
from primus_bootstrap.bundle.lock import make_lock, not_covered
from primus_bootstrap.bundle.needs import find_needs, target_of
from primus_bootstrap.cli.console import count, emit, emit_json, emit_table, plain_table, program, say, short
from primus_bootstrap.cli.options import DEFAULT_HOSTS, AsJson, HostsFileOption, VaultPasswordFile
from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.playbooks import hosts_of, load_phases
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.kubernetes.release import archive_fault
from primus_bootstrap.lab.apt_settings import read_apt_settings
from primus_bootstrap.lab.lab_values import LabError
from primus_bootstrap.lab.machine import release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Rendered, Target, Wanted
    from primus_bootstrap.inventory.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Prepare the downloads of an apply as one folder, for hosts without internet access.")
SCHEMA = "primus.bundle/1"
_INCOMPLETE = 4
_SHOWN = 3
_UNPINNED = {
    "file": "no role has its checksum; recorded sha256 {}: compare it with the publisher's",
    "image": "its tag may point to another image later; now it is sha256:{}",
}

LockFile = Annotated[
    Path | None, typer.Option("--lock", help="The lock file; bundle.lock.yaml next to hosts.yaml by default.", metavar="FILE")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the bundle; bundle next to hosts.yaml by default.", metavar="DIR")]


@app.command("list")
def list_(
    *,
    inventory: HostsFileOption = DEFAULT_HOSTS,
    lock: LockFile = None,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """List every file, wheel, package and image that an apply downloads, why, and whether it is locked. Contacts no host."""
    cluster = load_cluster(inventory, vault_password_file=vault_password_file)
    known = lock_file.read_lock(_lock_path(cluster, lock))
    needs, _ = _needs(cluster, known)
    missing = not_covered(needs, known)
    if as_json:
        emit_json(_json(cluster, needs, known, missing))
        return
    table = plain_table("kind", "name", "for", "version", "sha256", "pin", "roles", "hosts")
    for wanted in needs.wanted:
        item = known.find(wanted.need)
        version, sha256 = (item.version, item.sha256[:16]) if item else (wanted.need.version, NOT_LOCKED)
        need, pin = wanted.need, known.pin(wanted.need)
        table.add_row(need.kind, need.name, str(need.target or ""), version, sha256, pin, ", ".join(wanted.roles), _why(wanted))
    emit_table(table)
    beside = len(known.files) - len({item.path for wanted in needs.wanted if (item := known.find(wanted.need)) and item.path})
    if known.items:
        emit(f"also locked: {count(beside, 'file')} that these depend on")
    _emit_beyond(needs)
    for one in needs.unknown:
        emit(f"unknown: downloads of the role {one.role} on {_few(one.hosts)}: {one.reason}\n  fix: {one.fix}")
    if missing:
        emit(f"{len(missing)} not locked. Next: {program()} bundle lock --inventory {short(cluster.path)}")


@app.command("lock")
def lock_(
    *,
    inventory: HostsFileOption = DEFAULT_HOSTS,
    lock: LockFile = None,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Find the version and checksum of everything that an apply downloads, and write the lock file. Needs internet access."""
    cluster = load_cluster(inventory, vault_password_file=vault_password_file)
    path = _lock_path(cluster, lock)
    known = lock_file.read_lock(path)
    found = find_needs(cluster, uses_of(cluster))
    charts.fetch(found.charts, _places(cluster, found), _cache() / "charts", say)
    needs, rendered = charts.with_images(found, known, _places(cluster, found))
    made, unresolved = make_lock(needs, known, sources=_sources(cluster), folder=_cache(), say=say, proofs=_proofs(needs))
    changed = write_if_changed(path, lock_file.lock_text(replace(made, charts=rendered)), mode=0o644)
    emit(f"{'wrote' if changed else 'unchanged:'} {short(path)}: {count(len(made.items), 'item')} locked")
    for item in made.items:
        if item.kind in _UNPINNED and not item.pinned:
            emit(f"unpinned: {item.kind} {item.name}: {_UNPINNED[item.kind].format(item.sha256)}")
    _emit_beyond(needs)
    if unresolved:
        for one in unresolved:
            emit(f"not resolved: {one.what}: {one.reason}\n  fix: {one.fix}")
        raise typer.Exit(_INCOMPLETE)
    emit(f"Next: {program()} bundle create --inventory {short(cluster.path)}")


@app.command()
def create(
    *,
    inventory: HostsFileOption = DEFAULT_HOSTS,
    lock: LockFile = None,
    out: Out = None,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Download everything in the lock file, verify every checksum, and write the folder. Continues after an interruption."""
    cluster = load_cluster(inventory, vault_password_file=vault_password_file)
    known = _demanded_lock(cluster, lock)
    target = out or _default_out(cluster)
    _warn_of_uncovered(cluster, known)
    failed = bundle_folder.create(known, target, sources=_sources(cluster), cache=_cache(), say=say)
    if failed:
        for path, why in failed.items():
            emit(f"{path}: {why}")
        fix = "run the same command again; if a source no longer has a version, first run primus-bootstrap bundle lock"
        raise BundleError(f"{count(len(failed), 'file')} could not be downloaded", fix=fix)
    emit(f"{short(target)}: {count(len(known.files), 'file')}, all checksums verified")


@app.command()
def check(
    *,
    inventory: HostsFileOption = DEFAULT_HOSTS,
    lock: LockFile = None,
    out: Out = None,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare a bundle with the lock file, and the lock file with the downloads of an apply. Contacts no host."""
    cluster = load_cluster(inventory, vault_password_file=vault_password_file)
    known = _demanded_lock(cluster, lock)
    target = out or _default_out(cluster)
    state = bundle_folder.check(known, target)
    needs, _ = _needs(cluster, known, target)
    missing = not_covered(needs, known)
    whole = state.good and not missing
    if as_json:
        emit_json({"schema": SCHEMA, "bundle": str(target), "whole": whole, "not_locked": missing, **_lists(state), **_not_held(needs)})
    else:
        for word, names in _lists(state).items():
            for name in names:
                emit(f"{word}: {name}")
        for name in missing:
            emit(f"{NOT_LOCKED}: {name}")
        _emit_images(needs)
        _emit_beyond(needs)
        emit(f"{short(target)}: {state.whole} of {state.whole + len(state.missing) + len(state.damaged)} files are complete")
    if not whole:
        raise typer.Exit(_INCOMPLETE)


def _lists(state: bundle_folder.State) -> dict[str, list[str]]:
    return {"missing": state.missing, "damaged": state.damaged, "surplus": state.surplus}


def uses_of(cluster: Cluster) -> Iterator[Use]:
    """Yield every use of a role in the phases, with its hosts."""
    for phase in load_phases(content.playbooks_dir()):
        for play in phase.plays:
            hosts = hosts_of(cluster, play)
            where = (play.path, play.number) if play.path else None
            yield from (Use(call.role, call.entry, play.pattern, hosts, play.vars_files, where) for call in play.calls if hosts)


def _needs(cluster: Cluster, known: Lock, out: Path | None = None) -> tuple[Needs, tuple[Rendered, ...]]:
    """Return the downloads of an apply, including the images of its charts, and the rendered charts; download nothing."""
    found = find_needs(cluster, uses_of(cluster))
    return charts.with_images(found, known, _places(cluster, found, out))


def _places(cluster: Cluster, needs: Needs, out: Path | None = None) -> charts.Places:
    """Return the paths of charts and helm on this machine."""
    given = os.environ.get("PRIMUS_CHARTS_DIR")
    folders = (cluster.state_dir / "charts", *((Path(given).expanduser().absolute(),) if given else ()))
    return charts.Places(cluster.path.parent, (out or _default_out(cluster), _cache() / "charts"), folders, _helm(cluster, needs))


def _helm(cluster: Cluster, needs: Needs) -> str:
    """Return the path of the helm that an apply uses, or of this machine's; an empty string if there is none."""
    variables = cluster.view.variables(needs.charts[0].host) if needs.charts else {}
    stated = str(variables["kube_helm_path"]) if "kube_helm_path" in variables else ""
    own = [str(cluster.path.parent / stated)] if stated else []
    found = [os.environ.get("PRIMUS_HELM", ""), *own, str(cluster.state_dir / "bin" / "helm"), shutil.which("helm") or ""]
    return next((str(Path(one).absolute()) for one in found if one and Path(one).is_file()), "")


def _proofs(needs: Needs) -> dict[str, Callable[[Path], str]]:
    """Return the functions that verify files without a checksum: Kubespray's release has a pinned commit."""
    return {one.need.name: archive_fault for one in needs.wanted if one.need.kind == "file" and one.roles == ("kubespray",)}


def _emit_images(needs: Needs) -> None:
    for need in needs.of("image"):
        emit(f"not in the bundle: image {need.name}")


def _emit_beyond(needs: Needs) -> None:
    for one in needs.beyond:
        emit(f"not in the bundle: {one.what} ({one.role}, {_few(one.hosts)})\n  fix: {one.how}")


def _not_held(needs: Needs) -> dict[str, Any]:
    beyond = [{"what": one.what, "how": one.how, "role": one.role, "hosts": one.hosts} for one in needs.beyond]
    return {"images": [need.name for need in needs.of("image")], "beyond": beyond}


def _sources(cluster: Cluster) -> Callable[[Target], Sources]:
    """Return a function that finds the package sources of a target: a file from the inventory, or this machine's sources."""
    name = "airgap_apt_sources_file"
    stated: dict[Target, str] = {}
    for host in cluster.hosts:
        variables = cluster.view.variables(host.name)
        value = variables[name] if name in variables else load_options()[name].default
        stated.setdefault(target_of(cluster, host.name), str(value))

    def sources(target: Target) -> Sources:
        if stated.get(target):
            path = cluster.path.parent / stated[target]
            try:
                return Sources(path.read_text(encoding="utf-8"), path.suffix.lstrip("."))
            except OSError as error:
                raise BundleError(
                    f"{path}: {error.strerror}", fix=f"correct {name}; a relative path starts at the folder of hosts.yaml"
                ) from error
        try:
            settings = read_apt_settings(release(Path("/etc/os-release"))[0])
        except LabError as error:
            raise BundleError(error.what, fix=f"{error.fix}, or set {name} to a file with package sources") from error
        return Sources(settings.sources_text(target.release), options=settings.options_text())

    return sources


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "primus-bootstrap" / "bundle"


def _lock_path(cluster: Cluster, given: Path | None) -> Path:
    return given or cluster.path.parent / lock_file.NAME


def _default_out(cluster: Cluster) -> Path:
    return cluster.path.parent / "bundle"


def _demanded_lock(cluster: Cluster, given: Path | None) -> Lock:
    path = _lock_path(cluster, given)
    known = lock_file.read_lock(path)
    if not known.items:
        raise PlanError(f"{path}: nothing is locked", fix=f"on a machine with internet access: {program()} bundle lock")
    return known


def _warn_of_uncovered(cluster: Cluster, known: Lock) -> None:
    for name in not_covered(_needs(cluster, known)[0], known):
        say(f"{NOT_LOCKED}: {name}")


def _json(cluster: Cluster, needs: Needs, known: Lock, missing: tuple[str, ...]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "cluster": cluster.name,
        "items": [_entry(wanted, known) for wanted in needs.wanted],
        "unknown": [{"role": one.role, "hosts": one.hosts, "reason": one.reason, "fix": one.fix} for one in needs.unknown],
        "not_locked": missing,
        "beyond": _not_held(needs)["beyond"],
    }


def _entry(wanted: Wanted, known: Lock) -> dict[str, Any]:
    need: Need = wanted.need
    item = known.find(need)
    return {
        "kind": need.kind,
        "name": need.name,
        "release": need.target.release if need.target else None,
        "architecture": need.target.architecture if need.target else None,
        "roles": wanted.roles,
        "groups": wanted.patterns,
        "hosts": wanted.hosts,
        "version": item.version if item else need.version or None,
        "sha256": item.sha256 if item else need.sha256 or None,
        "locked": item is not None,
        "pin": known.pin(need),
        "url": item.url if item else None,
    }


def _why(wanted: Wanted) -> str:
    return f"{', '.join(wanted.patterns)}: {_few(wanted.hosts)}"


def _few(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:_SHOWN])
    return shown if len(hosts) <= _SHOWN else f"{shown}, … ({len(hosts)})"
