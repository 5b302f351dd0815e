"""Determine the downloads of an apply from the inventory and the roles' `meta/fetches.yml`, without contacting a host."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.bundle.artifacts import KINDS, Chart, External, Need, Needs, Requirement, Target, Unknown
from primus_bootstrap.bundle.backend_wheels import backend_wheels
from primus_bootstrap.inventory.cluster import RoleSources
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from primus_bootstrap.bundle.artifacts import Use
    from primus_bootstrap.inventory.cluster import Cluster

# The facts of each release that the roles' variables use. A bundle has packages for apt only: those of el9 are outside of it.
RELEASES: Mapping[str, Mapping[str, str]] = {
    "bookworm": {"distribution": "Debian", "distribution_version": "12", "os_family": "Debian"},
    "trixie": {"distribution": "Debian", "distribution_version": "13", "os_family": "Debian"},
    "jammy": {"distribution": "Ubuntu", "distribution_version": "22.04", "os_family": "Debian"},
    "noble": {"distribution": "Ubuntu", "distribution_version": "24.04", "os_family": "Debian"},
    "el9": {"distribution": "Rocky", "distribution_version": "9", "os_family": "RedHat"},
}
# dpkg's architectures, and the kernel's, which Ansible's facts use.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
RELEASE_VARIABLE = "airgap_release"
ARCHITECTURE_VARIABLE = "airgap_architecture"
_DNF_SOURCES = "offer BaseOS, AppStream, CRB and EPEL on a mirror of the network, and enable them on the hosts before the apply"
_SET_RELEASE = f"set {RELEASE_VARIABLE} for these hosts: {', '.join(RELEASES)}"


def facts_of(target: Target) -> dict[str, str]:
    """Return Ansible's facts of such a host; without a release only the architecture."""
    release = {**RELEASES[target.release], "distribution_release": target.release} if target.release else {}
    major = {"distribution_major_version": release["distribution_version"].partition(".")[0]} if release else {}
    return {**release, **major, "architecture": MACHINES.get(target.architecture, target.architecture)}


def has_packages(target: Target) -> bool:
    """Return whether a bundle has packages for such hosts; they are also listed if the release is unknown."""
    return not target.release or RELEASES[target.release]["os_family"] == "Debian"


def target_of(cluster: Cluster, host: str) -> Target:
    """Return a host's release and architecture from the inventory."""
    variables = cluster.view.variables(host)

    def stated(name: str) -> str:
        return str(variables[name] if name in variables else load_options()[name].default)

    return Target(stated(RELEASE_VARIABLE), stated(ARCHITECTURE_VARIABLE))


def fetches_file(role: str) -> Any:
    """Return the path of a role's list of downloads."""
    return content.roles_dir() / role / "meta" / "fetches.yml"


def find_needs(cluster: Cluster, uses: Iterable[Use]) -> Needs:
    """Return all downloads of these uses of roles on the hosts of a cluster."""
    found = _Collector()
    for use in uses:
        if not fetches_file(use.role).is_file():
            continue
        stated = cluster.view.read_templates(fetches_file(use.role)) or {}
        passed = (cluster.view.read_templates(use.play[0])[use.play[1]].get("vars") or {}) if use.play else {}
        for host in use.hosts if use.entry in stated else ():
            target = target_of(cluster, host)
            resolve = cluster.view.role_scope(host, _sources(use, target, passed))
            for item in stated[use.entry]:
                try:
                    if "when" in item and not resolve(item["when"]):
                        continue
                    found.add(use, host, target, list(_needs(item, resolve, target)))
                    found.add_kubernetes(use, host, item, resolve)
                    found.add_outside(use, host, target, resolve(item.get("packages")) or ())
                except ValueError as error:
                    found.unknown[(use.role, str(error), _fix(item, target))].append(host)
    return found.result()


def _sources(use: Use, target: Target, passed: Mapping[str, Any]) -> RoleSources:
    """Return the sources of a role's variables in Ansible's order: a play's files override the inventory, `vars/` overrides both."""
    folder = content.roles_dir() / use.role
    role_vars = folder / "vars" / "main.yml"
    defaults = folder / "defaults" / "main.yml"
    return RoleSources(
        defaults=(defaults,) if defaults.is_file() else (),
        overrides=(*use.vars_files, *((role_vars,) if role_vars.is_file() else ())),
        facts=facts_of(target),
        given=passed,
    )


def _fix(item: Mapping[str, Any], target: Target) -> str:
    """Return the fix of an entry that cannot be resolved."""
    # A chart does not depend on the release.
    return str(item.get("fix") or (_SET_RELEASE if not target.release and "chart" not in item else "correct these variables in hosts.yaml"))


def _needs(item: Mapping[str, Any], resolve: Callable[[Any], Any], target: Target) -> Iterator[Need]:
    """Yield the needs of one entry of `fetches.yml` for one host.

    Raises:
        ValueError: The entry cannot be resolved.
    """
    for kind in KINDS:
        match kind, resolve(item.get("packages" if kind == "package" else kind)):
            case _, None:
                continue
            case "package", list(names):
                if not target.release:
                    raise ValueError(f"{RELEASE_VARIABLE} is not set for these hosts")
                if not has_packages(target):
                    continue
                yield from (Need("package", str(name), target) for name in names)
            case "file", dict(file):
                yield Need("file", file["url"], sha256=file.get("sha256", ""), version=str(file.get("version", "")))
            case "wheel", dict(wheel):
                yield from _wheels(wheel)
            case "image", dict(image):
                yield Need("image", image["reference"], sha256=image.get("sha256", ""))
            case _, other:
                raise ValueError(f"meta/fetches.yml: {kind} cannot be {type(other).__name__}")


def _wheels(wheel: Mapping[str, Any]) -> Iterator[Need]:
    """Yield one wheel, those that are resolved together, or those of a training backend."""
    if "backends" in wheel:
        names = dict.fromkeys(name for backend in wheel["backends"] for name in backend_wheels(str(backend), str(wheel.get("gpus", ""))))
        yield from (Need("wheel", name) for name in names)
        return
    together = tuple(map(str, wheel.get("together", ())))
    yield from (Need("wheel", name, sha256=wheel.get("sha256", ""), together=together) for name in together or [wheel["requirement"]])


class _Collector:
    """Collects needs in the order of the phases."""

    def __init__(self) -> None:
        self.needs: dict[Need, dict[str, list[str]]] = {}
        self.packages: dict[str, set[str]] = defaultdict(set)
        self.targets: dict[str, Target] = {}
        self.unknown: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        self.charts: list[Chart] = []
        self.external: dict[tuple[str, str, str], list[str]] = defaultdict(list)

    def add(self, use: Use, host: str, target: Target, needs: Iterable[Need]) -> None:
        self.targets[host] = target
        for need in needs:
            users = self.needs.setdefault(need, {"roles": [], "patterns": [], "hosts": []})
            users["roles"].append(use.role)
            users["patterns"].append(use.pattern)
            users["hosts"].append(host)
            if need.kind == "package":
                self.packages[host].add(need.name)

    def add_kubernetes(self, use: Use, host: str, item: Mapping[str, Any], resolve: Callable[[Any], Any]) -> None:
        """Add a chart, and a download that no bundle contains."""
        if "chart" in item:
            entry = resolve(item["chart"])
            source = {name: str(entry["chart"].get(name, "")) for name in ("name", "version", "url", "file", "sha256")}
            names = {name: str(entry[name]) for name in ("release", "namespace")}
            prefix = str(entry.get("role", use.role))
            self.charts.append(Chart(use.role, prefix, **source, **names, values=entry["values"], pattern=use.pattern, host=host))
        if "beyond" in item:
            entry = resolve(item["beyond"])
            self.external[use.role, str(entry["what"]), str(entry["how"])].append(host)

    def add_outside(self, use: Use, host: str, target: Target, packages: Sequence[str]) -> None:
        """Add the packages of a host for which a bundle has none."""
        if packages and not has_packages(target):
            self.external[use.role, f"packages of {target.release}: {', '.join(packages)}", _DNF_SOURCES].append(host)

    def result(self) -> Needs:
        requirements = [
            Requirement(need, *(tuple(dict.fromkeys(users[name])) for name in ("roles", "patterns", "hosts")))
            for need, users in self.needs.items()
        ]
        order = {kind: number for number, kind in enumerate(KINDS)}
        requirements.sort(key=lambda entry: (order[entry.need.kind], str(entry.need.target), entry.need.name))
        sets = {(self.targets[host], frozenset(names)) for host, names in self.packages.items()}
        largest = [entry for entry in sets if not any(entry[0] == other[0] and entry[1] < other[1] for other in sets)]
        unknown = tuple(Unknown(role, tuple(dict.fromkeys(hosts)), why, fix) for (role, why, fix), hosts in self.unknown.items())
        ordered = tuple(sorted(largest, key=lambda entry: (entry[0], sorted(entry[1]))))
        external = tuple(External(what, how, role, tuple(dict.fromkeys(hosts))) for (role, what, how), hosts in self.external.items())
        return Needs(tuple(requirements), ordered, unknown, tuple(self.charts), external)
