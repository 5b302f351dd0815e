"""The verbs of `bundle`: list, lock, download and check everything that an apply downloads. They contact no host."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus_bootstrap import content
from primus_bootstrap.bundle import charts, image_layout, lock_file
from primus_bootstrap.bundle import folder as bundle_folder
from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import NOT_LOCKED, BundleError, Use
from primus_bootstrap.bundle.lock import make_lock, missing_from_lock
from primus_bootstrap.bundle.needs import find_needs, target_of
from primus_bootstrap.cli.console import count, emit, emit_json, emit_table, plain_table, program, say, short
from primus_bootstrap.cli.options import DEFAULT_HOSTS, AsJson, HostsFileOption, VaultPasswordFile
from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.playbooks import hosts_of, load_phases
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.kubernetes.preflight import release_of
from primus_bootstrap.kubernetes.release import archive_fault
from primus_bootstrap.lab.apt_settings import read_apt_settings
from primus_bootstrap.lab.lab_values import LabError
from primus_bootstrap.lab.machine import release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Rendered, Requirement, Target
    from primus_bootstrap.inventory.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Prepare the downloads of an apply as one folder, for hosts without internet access.")
SCHEMA = "primus.bundle/1"
_INCOMPLETE = 4
_SHOWN_HOSTS = 3
_UNPINNED = {
    "file": "no role has its checksum; recorded sha256 {}: compare it with the publisher's",
    "image": "its tag may point to another image later; now it is sha256:{}",
}

LockFile = Annotated[
    Path | None, typer.Option("--lock", help="The lock file; bundle.lock.yaml next to hosts.yaml by default.", metavar="FILE")
]
Images = Annotated[bool, typer.Option("--images", help="Also download the images, all platforms of each.")]
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
    locked = lock_file.read_lock(_lock_path(cluster, lock))
    needs, _ = _needs(cluster, locked)
    missing = missing_from_lock(needs, locked)
    if as_json:
        emit_json(_json(cluster, needs, locked, missing))
        return
    table = plain_table("kind", "name", "for", "version", "sha256", "pin", "roles", "hosts")
    for requirement in needs.requirements:
        item = locked.find(requirement.need)
        version, sha256 = (item.version, item.sha256[:16]) if item else (requirement.need.version, NOT_LOCKED)
        need, pin = requirement.need, locked.pin(requirement.need)
        table.add_row(
            need.kind,
            need.name,
            str(need.target or ""),
            version,
            sha256,
            pin,
            ", ".join(requirement.roles),
            _requirement_reason(requirement),
        )
    emit_table(table)
    dependencies = len(locked.files) - len(
        {item.path for requirement in needs.requirements if (item := locked.find(requirement.need)) and item.path}
    )
    if locked.items:
        emit(f"also locked: {count(dependencies, 'file')} that these depend on")
    _print_external(needs)
    for unknown in needs.unknown:
        emit(f"unknown: downloads of the role {unknown.role} on {_hosts_text(unknown.hosts)}: {unknown.reason}\n  fix: {unknown.fix}")
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
    locked = lock_file.read_lock(path)
    without_images = find_needs(cluster, uses_of(cluster))
    charts.fetch(without_images.charts, _chart_paths(cluster, without_images), _cache() / "charts", say)
    needs, rendered = charts.with_images(without_images, locked, _chart_paths(cluster, without_images))
    new_lock, unresolved = make_lock(
        needs, locked, sources=_sources(cluster), folder=_cache(), progress=say, proofs=_proofs(needs, cluster)
    )
    changed = write_if_changed(path, lock_file.lock_text(replace(new_lock, charts=rendered)), mode=0o644)
    emit(f"{'wrote' if changed else 'unchanged:'} {short(path)}: {count(len(new_lock.items), 'item')} locked")
    for item in new_lock.items:
        if item.kind in _UNPINNED and not item.pinned:
            emit(f"unpinned: {item.kind} {item.name}: {_UNPINNED[item.kind].format(item.sha256)}")
    _print_external(needs)
    if unresolved:
        for failure in unresolved:
            emit(f"not resolved: {failure.what}: {failure.reason}\n  fix: {failure.fix}")
        raise typer.Exit(_INCOMPLETE)
    emit(f"Next: {program()} bundle create --inventory {short(cluster.path)}")


@app.command()
def create(
    *,
    inventory: HostsFileOption = DEFAULT_HOSTS,
    lock: LockFile = None,
    out: Out = None,
    images: Images = False,
    vault_password_file: VaultPasswordFile = None,
) -> None:
    """Download everything in the lock file, verify every checksum, and write the folder. Continues after an interruption."""
    cluster = load_cluster(inventory, vault_password_file=vault_password_file)
    locked = _require_lock(cluster, lock)
    target = out or _default_out(cluster)
    _warn_if_incomplete(cluster, locked)
    failed = bundle_folder.create(locked, target, sources=_sources(cluster), cache=_cache(), progress=say, images=images)
    if failed:
        for path, why in failed.items():
            emit(f"{path}: {why}")
        fix = "run the same command again; if a source no longer has a version, first run primus-bootstrap bundle lock -i hosts.yaml"
        raise BundleError(f"{count(len(failed), 'file')} could not be downloaded", fix=fix)
    emit(f"{short(target)}: {count(len(locked.files), 'file')}, all checksums verified")


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
    locked = _require_lock(cluster, lock)
    target = out or _default_out(cluster)
    state = bundle_folder.check(locked, target)
    needs, _ = _needs(cluster, locked, target)
    missing = missing_from_lock(needs, locked)
    whole = state.complete and not missing
    if as_json:
        emit_json(
            {
                "schema": SCHEMA,
                "bundle": str(target),
                "whole": whole,
                "not_locked": missing,
                **_lists(state),
                **_external_json(needs, image_layout.exists(target)),
            }
        )
    else:
        for word, names in _lists(state).items():
            for name in names:
                emit(f"{word}: {name}")
        for name in missing:
            emit(f"{NOT_LOCKED}: {name}")
        if not image_layout.exists(target):
            _print_images(needs)
        _print_external(needs)
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


def _needs(cluster: Cluster, locked: Lock, out: Path | None = None) -> tuple[Needs, tuple[Rendered, ...]]:
    """Return the downloads of an apply, including the images of its charts, and the rendered charts; download nothing."""
    without_images = find_needs(cluster, uses_of(cluster))
    return charts.with_images(without_images, locked, _chart_paths(cluster, without_images, out))


def _chart_paths(cluster: Cluster, needs: Needs, out: Path | None = None) -> charts.ChartPaths:
    """Return the paths of charts and helm on this machine."""
    extra = os.environ.get("PRIMUS_CHARTS_DIR")
    folders = (cluster.state_dir / "charts", *((Path(extra).expanduser().absolute(),) if extra else ()))
    return charts.ChartPaths(cluster.path.parent, (out or _default_out(cluster), _cache() / "charts"), folders, _helm(cluster, needs))


def _helm(cluster: Cluster, needs: Needs) -> str:
    """Return the path of the helm that an apply uses, or of this machine's; an empty string if there is none."""
    variables = cluster.view.variables(needs.charts[0].host) if needs.charts else {}
    setting = str(variables["kube_helm_path"]) if "kube_helm_path" in variables else ""
    from_inventory = [str(cluster.path.parent / setting)] if setting else []
    paths = [os.environ.get("PRIMUS_HELM", ""), *from_inventory, str(cluster.state_dir / "bin" / "helm"), shutil.which("helm") or ""]
    return next((str(Path(path).absolute()) for path in paths if path and Path(path).is_file()), "")


def _proofs(needs: Needs, cluster: Cluster) -> dict[str, Callable[[Path], str]]:
    """Return the functions that verify files without a checksum: Kubespray's release is a commit with a known tree."""
    release = [item.need.name for item in needs.requirements if item.need.kind == "file" and item.roles == ("kubespray",)]
    return dict.fromkeys(release, partial(archive_fault, release=release_of(cluster))) if release else {}


def _print_images(needs: Needs) -> None:
    for need in needs.of("image"):
        emit(f"not in the bundle: image {need.name}\n  fix: run `{program()} bundle create` with --images, or copy it to your registry")


def _print_external(needs: Needs) -> None:
    for item in needs.external:
        emit(f"not in the bundle: {item.what} ({item.role}, {_hosts_text(item.hosts)})\n  fix: {item.how}")


def _external_json(needs: Needs, has_images: bool = False) -> dict[str, Any]:  # noqa: FBT002 - a fact of the bundle
    return {"images": [] if has_images else [need.name for need in needs.of("image")], "beyond": [asdict(item) for item in needs.external]}


def _sources(cluster: Cluster) -> Callable[[Target], Sources]:
    """Return a function that finds the package sources of a target: a file from the inventory, or this machine's sources."""
    name = "airgap_apt_sources_file"
    source_files: dict[Target, str] = {}
    for host in cluster.hosts:
        variables = cluster.view.variables(host.name)
        value = variables[name] if name in variables else load_options()[name].default
        source_files.setdefault(target_of(cluster, host.name), str(value))

    def sources(target: Target) -> Sources:
        if source_files.get(target):
            path = cluster.path.parent / source_files[target]
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


def _lock_path(cluster: Cluster, path: Path | None) -> Path:
    return path or cluster.path.parent / lock_file.NAME


def _default_out(cluster: Cluster) -> Path:
    return cluster.path.parent / "bundle"


def _require_lock(cluster: Cluster, path: Path | None) -> Lock:
    path = _lock_path(cluster, path)
    locked = lock_file.read_lock(path)
    if not locked.items:
        raise PlanError(f"{path}: nothing is locked", fix="on a machine with internet access: primus-bootstrap bundle lock -i hosts.yaml")
    return locked


def _warn_if_incomplete(cluster: Cluster, locked: Lock) -> None:
    for name in missing_from_lock(_needs(cluster, locked)[0], locked):
        say(f"{NOT_LOCKED}: {name}")


def _json(cluster: Cluster, needs: Needs, locked: Lock, missing: tuple[str, ...]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "cluster": cluster.name,
        "items": [_entry(requirement, locked) for requirement in needs.requirements],
        "unknown": [asdict(item) for item in needs.unknown],
        "not_locked": missing,
        "beyond": _external_json(needs)["beyond"],
    }


def _entry(requirement: Requirement, locked: Lock) -> dict[str, Any]:
    need: Need = requirement.need
    item = locked.find(need)
    return {
        "kind": need.kind,
        "name": need.name,
        "release": need.target.release if need.target else None,
        "architecture": need.target.architecture if need.target else None,
        "roles": requirement.roles,
        "groups": requirement.patterns,
        "hosts": requirement.hosts,
        "version": item.version if item else need.version or None,
        "sha256": item.sha256 if item else need.sha256 or None,
        "locked": item is not None,
        "pin": locked.pin(need),
        "url": item.url if item else None,
    }


def _requirement_reason(requirement: Requirement) -> str:
    return f"{', '.join(requirement.patterns)}: {_hosts_text(requirement.hosts)}"


def _hosts_text(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:_SHOWN_HOSTS])
    return shown if len(hosts) <= _SHOWN_HOSTS else f"{shown}, … ({len(hosts)})"
