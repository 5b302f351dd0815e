"""From the inventory and the roles' `meta/fetches.yml` to what an apply fetches. Pure but for reading those files; contacts no host."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from primus_bootstrap.bundle.artifacts import KINDS, Beyond, Chart, Need, Needs, Target, Unknown, Wanted
from primus_bootstrap.inventory.cluster import RoleSources
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from primus_bootstrap.bundle.artifacts import Use
    from primus_bootstrap.inventory.cluster import Cluster

# What Ansible's facts say of each release, as far as the roles' variables read them before a host is asked.
RELEASES: Mapping[str, Mapping[str, str]] = {
    "bookworm": {"distribution": "Debian", "distribution_version": "12", "os_family": "Debian"},
    "trixie": {"distribution": "Debian", "distribution_version": "13", "os_family": "Debian"},
    "jammy": {"distribution": "Ubuntu", "distribution_version": "22.04", "os_family": "Debian"},
    "noble": {"distribution": "Ubuntu", "distribution_version": "24.04", "os_family": "Debian"},
}
# dpkg's words for processors, and the kernel's, which Ansible's facts use.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
RELEASE_VARIABLE = "airgap_release"
ARCHITECTURE_VARIABLE = "airgap_architecture"
_STATE_RELEASE = f"state {RELEASE_VARIABLE} for these hosts: {', '.join(RELEASES)}"


def facts_of(target: Target) -> dict[str, str]:
    """Return what Ansible would learn of such a host; of a release that is not stated only the processor."""
    release = {**RELEASES[target.release], "distribution_release": target.release} if target.release else {}
    major = {"distribution_major_version": release["distribution_version"].partition(".")[0]} if release else {}
    return {**release, **major, "architecture": MACHINES.get(target.architecture, target.architecture)}


def target_of(cluster: Cluster, host: str) -> Target:
    """Return what the inventory says of a host's release and processor."""
    variables = cluster.view.variables(host)

    def stated(name: str) -> str:
        return str(variables[name] if name in variables else load_options()[name].default)

    return Target(stated(RELEASE_VARIABLE), stated(ARCHITECTURE_VARIABLE))


def fetches_file(role: str) -> Any:
    """Return where a role states what it fetches."""
    return content.roles_dir() / role / "meta" / "fetches.yml"


def find_needs(cluster: Cluster, uses: Iterable[Use]) -> Needs:
    """Return all that these uses of roles fetch on the hosts of a cluster."""
    found = _Found()
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
                except ValueError as error:
                    found.unknown[(use.role, str(error), _fix(item, target))].append(host)
    return found.result()


def _sources(use: Use, target: Target, passed: Mapping[str, Any]) -> RoleSources:
    """Return the sources of a role's variables, in Ansible's own order: a play's files win over the inventory, `vars/` over both."""
    folder = content.roles_dir() / use.role
    inner = folder / "vars" / "main.yml"
    defaults = folder / "defaults" / "main.yml"
    return RoleSources(
        defaults=(defaults,) if defaults.is_file() else (),
        overrides=(*use.vars_files, *((inner,) if inner.is_file() else ())),
        facts=facts_of(target),
        given=passed,
    )


def _fix(item: Mapping[str, Any], target: Target) -> str:
    """Say how to make known what an entry needs."""
    # What a chart is made of does not depend on hosts.
    return str(item.get("fix") or (_STATE_RELEASE if not target.release and "chart" not in item else "mend what it names"))


def _needs(item: Mapping[str, Any], resolve: Callable[[Any], Any], target: Target) -> Iterator[Need]:
    """Yield what one entry of a `fetches.yml` means for one host.

    Raises:
        ValueError: it cannot be told.
    """
    for kind in KINDS:
        match kind, resolve(item.get("packages" if kind == "package" else kind)):
            case _, None:
                continue
            case "package", list(names):
                if not target.release:
                    raise ValueError("the release of these hosts is not stated")
                yield from (Need("package", str(name), target) for name in names)
            case "file", dict(file):
                yield Need("file", file["url"], sha256=file.get("sha256", ""), version=str(file.get("version", "")))
            case "wheel", dict(wheel):
                together = tuple(map(str, wheel.get("together", ())))
                yield from (
                    Need("wheel", name, sha256=wheel.get("sha256", ""), together=together) for name in together or [wheel["requirement"]]
                )
            case "image", dict(image):
                yield Need("image", image["reference"], sha256=image.get("sha256", ""))
            case _, other:
                raise ValueError(f"meta/fetches.yml: {kind} cannot be {type(other).__name__}")


class _Found:
    """What has been found so far, in the order of the phases."""

    def __init__(self) -> None:
        self.wanted: dict[Need, dict[str, list[str]]] = {}
        self.packages: dict[str, set[str]] = defaultdict(set)
        self.targets: dict[str, Target] = {}
        self.unknown: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        self.charts: list[Chart] = []
        self.beyond: dict[tuple[str, str, str], list[str]] = defaultdict(list)

    def add(self, use: Use, host: str, target: Target, needs: Iterable[Need]) -> None:
        self.targets[host] = target
        for need in needs:
            by = self.wanted.setdefault(need, {"roles": [], "patterns": [], "hosts": []})
            by["roles"].append(use.role)
            by["patterns"].append(use.pattern)
            by["hosts"].append(host)
            if need.kind == "package":
                self.packages[host].add(need.name)

    def add_kubernetes(self, use: Use, host: str, item: Mapping[str, Any], resolve: Callable[[Any], Any]) -> None:
        """Note a chart that is to be rendered, and what is fetched beyond any bundle."""
        if "chart" in item:
            stated = resolve(item["chart"])
            words = {name: str(stated["chart"].get(name, "")) for name in ("name", "version", "url", "file", "sha256")}
            names = {name: str(stated[name]) for name in ("release", "namespace")}
            prefix = str(stated.get("role", use.role))
            self.charts.append(Chart(use.role, prefix, **words, **names, values=stated["values"], pattern=use.pattern, host=host))
        if "beyond" in item:
            told = resolve(item["beyond"])
            self.beyond[use.role, str(told["what"]), str(told["how"])].append(host)

    def result(self) -> Needs:
        wanted = [
            Wanted(need, *(tuple(dict.fromkeys(by[name])) for name in ("roles", "patterns", "hosts"))) for need, by in self.wanted.items()
        ]
        order = {kind: number for number, kind in enumerate(KINDS)}
        wanted.sort(key=lambda one: (order[one.need.kind], str(one.need.target), one.need.name))
        asked = {(self.targets[host], frozenset(names)) for host, names in self.packages.items()}
        largest = [one for one in asked if not any(one[0] == other[0] and one[1] < other[1] for other in asked)]
        unknown = tuple(Unknown(role, tuple(dict.fromkeys(hosts)), why, fix) for (role, why, fix), hosts in self.unknown.items())
        sets = tuple(sorted(largest, key=lambda one: (one[0], sorted(one[1]))))
        beyond = tuple(Beyond(what, how, role, tuple(dict.fromkeys(hosts))) for (role, what, how), hosts in self.beyond.items())
        return Needs(tuple(wanted), sets, unknown, tuple(self.charts), beyond)
