# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `gpu_driver` decides on the controller: which packages a host gets, or why none; and which hosts reboot together."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Outcomes of a plan.
SKIPPED, UNKNOWN, REFUSED, PRESENT, INSTALL = "skipped", "unknown", "refused", "present", "install"
MODULES = {"amd": "amdgpu", "nvidia": "nvidia"}
# These clones build their kernels from RHEL's sources; AMD's table names Rocky, NVIDIA's both.
_APT = ("ubuntu", "debian")
_LIKE_RHEL = ("rhel", "rocky", "almalinux")


class _Refusal(Exception):  # noqa: N818 (a decision, not an error)
    """Nothing may be installed; what, and how to mend it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


def plan(
    detected: Mapping[str, Any],
    host: Mapping[str, Any],
    wanted: Mapping[str, Any],
    releases: Mapping[str, Any],
    available: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return what is to be done on a host.

    Args:
        detected: What the detection of primus_bootstrap/launch says: verdict, vendor, model, reason.
        host: What the module gpu_driver_host found.
        wanted: state, version, tools, allow_secure_boot.
        releases: files/releases.yml.
        available: Versions by package that the host's package sources offer; None where nobody has asked yet.

    Returns:
        `outcome`; `reason` and `fix` where it is none of install and present; else module, its expected version, packages, sources.
    """
    nothing = {"module": "", "module_version": "", "packages": [], "sources": {}, "fabric": False, "due": False}
    empty = {**nothing, "reason": "", "fix": ""}
    if detected["verdict"] == "none":
        return {**empty, "outcome": SKIPPED, "reason": "this host has no GPU on its PCI bus"}
    if host["container"]:
        return {**empty, "outcome": SKIPPED, "reason": f"the driver belongs to the machine below this {host['container']} container"}
    try:
        return {**empty, **_plan(detected, host, wanted, releases, available)}
    except _Refusal as refusal:
        outcome = UNKNOWN if detected["verdict"] == "unknown" else REFUSED
        return {**empty, "outcome": outcome, "reason": refusal.reason, "fix": refusal.fix}


def _plan(
    detected: Mapping[str, Any], host: Mapping[str, Any], wanted: Mapping[str, Any], releases: Mapping[str, Any], available: Any
) -> dict[str, Any]:
    vendor = detected["vendor"]
    if detected["verdict"] != "ok" or vendor not in MODULES:
        raise _Refusal(
            f"which GPUs this host has is not clear: {detected['reason'] or detected['verdict']}",
            "see `primus-bootstrap probe`; put GPUs of one vendor into a host, or see to the driver yourself (gpu_driver_state: present)",
        )
    version = wanted["version"]
    found = {"module": MODULES[vendor], "fabric": _has_fabric(detected, host)}
    if wanted["state"] == "present" and not version:
        return {"outcome": PRESENT, **found}
    series = _series(vendor, version, releases[vendor])
    found["module_version"] = series.get("module", version)
    if wanted["state"] == "present":
        return {"outcome": PRESENT, **found}
    kernel_fits(detected["model"], host, version, series)
    if host["distribution"] not in _APT:
        raise _Refusal(
            f"this role installs drivers on {' and '.join(_APT)} only, not on {host['distribution']}",
            "install the vendor's packages by the site's own means; gpu_driver_state: present with gpu_driver_version checks them",
        )
    if host["secure_boot"] and not wanted["allow_secure_boot"]:
        raise _Refusal(
            "Secure Boot is on, and the kernel refuses a module that is built here and not signed with a key it knows",
            "enrol the key of DKMS (mokutil --import) and set gpu_driver_allow_secure_boot, or switch Secure Boot off in the firmware",
        )
    if host["closed"]:
        raise _Refusal(
            "apt on this host reads no source but a bundle's (Dir::Etc::SourceParts is /dev/null, by the role airgap), and a bundle holds "
            "neither the vendor's packages nor its key",
            "gpu_driver_state: present, with the driver in the host's image or installed while its repository was in reach",
        )
    packages = _packages(host, wanted, releases[vendor], series, version, fabric=found["fabric"])
    found["due"] = any(not _there(package, host["installed"]) for package in packages)
    if available is not None:
        wishes, packages = packages, _chosen(packages, available)
        # The first version that fits is the newest; one that fits and is older stays, because nobody asked for another.
        packages = [one for one, wish in zip(packages, wishes, strict=True) if not _there(wish, host["installed"])]
    return {"outcome": INSTALL, **found, "packages": packages, "sources": _sources(vendor, host, releases[vendor], series, version)}


def _series(vendor: str, version: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the series that a version is of; NVIDIA's versions are open, AMD's are listed."""
    wanted = ".".join(version.split(".")[: 1 if vendor == "nvidia" else 2])
    series: Mapping[str, Any] | None = known["series"].get(wanted)
    if vendor == "nvidia":
        choices = [f"{name}.…" for name in known["series"]]
        fits = series is not None and re.fullmatch(r"\d{3}\.\d+(\.\d+)?", version)
    else:
        choices = [release for one in known["series"].values() for release in one["releases"]]
        fits = series is not None and version in series["releases"]
    if not fits or series is None:
        raise _Refusal(
            f"gpu_driver_version {version or '(none)'} is no release that this role knows for {vendor}",
            f"choose from {', '.join(choices)}; a newer one is an entry in roles/gpu_driver/files/releases.yml",
        )
    return series


def kernel_fits(model: str, host: Mapping[str, Any], version: str, series: Mapping[str, Any]) -> None:
    """Refuse a model, distribution or kernel that the vendor does not list for the release.

    Raises:
        _Refusal: It is not listed; the fix names what is.
    """
    names = model.split("/")  # products that share a PCI id: all of them must be supported
    for name in names:
        if name not in series["models"]:
            raise _Refusal(f"{version} does not support {name}", f"choose a release for it; {version} is for {', '.join(series['models'])}")
        systems = series["models"][name] or series["systems"]
        system, kernel = system_name(host), host["kernel"]
        if system not in systems:
            shown = ", ".join(systems)
            raise _Refusal(f"{version} supports {name} on {shown}, not on {system}", f"install one of {shown}, or choose another release")
        if ".".join(kernel.split(".")[:2]) not in systems[system]:
            shown = ", ".join(systems[system])
            raise _Refusal(
                f"{version} supports {name} on {system} with kernels {shown}, and {kernel} runs",
                f"boot a kernel of {shown} (playbooks/day2/reboot_node.yml), or choose another release",
            )


def system_name(host: Mapping[str, Any]) -> str:
    """Return the distribution as the data file spells it: ubuntu24.04, debian12, rhel9."""
    if host["distribution"] == "ubuntu":
        return f"ubuntu{host['version']}"
    name = "rhel" if host["distribution"] in _LIKE_RHEL else host["distribution"]
    return f"{name}{host['version'].split('.')[0]}"


def _has_fabric(detected: Mapping[str, Any], host: Mapping[str, Any]) -> bool:
    """Whether GPUs reach each other through NVSwitches, which need the fabric manager; those of B200 are not on the PCI bus."""
    return bool(detected["vendor"] == "nvidia" and (host["nvswitches"] or detected["model"] == "B200"))


def _packages(  # noqa: PLR0913 (what the parts of one decision are)
    host: Mapping[str, Any], wanted: Mapping[str, Any], known: Mapping[str, Any], series: Mapping[str, Any], version: str, *, fabric: bool
) -> list[dict[str, str]]:
    """Return names, and patterns of versions where the release decides them."""
    build = series.get("releases", {}).get(version, {}).get("build", "")
    pattern = known["package_version"].format(module=series.get("module", ""), build=build, version=version)
    drivers = [*known["driver_packages"], *(series.get("fabric_packages", ()) if fabric else ())]
    tools = [*known["tool_packages"], *wanted["tools"]]
    return [
        {"name": f"linux-headers-{host['kernel']}", "version": ""},  # the module is built against them
        *({"name": name, "version": pattern} for name in drivers),
        *({"name": name, "version": _tool_version(version) if known.get("tool_version") else ""} for name in tools),
    ]


def _tool_version(release: str) -> str:
    """Return the pattern of ROCm's own packages, which carry the release as a number: distributions have some by the same names."""
    major, minor, patch = (int(part) for part in release.split("."))
    return f"*.{major}{minor:02}{patch:02}-*"


def _there(package: Mapping[str, str], installed: Mapping[str, str]) -> bool:
    """Whether a package is installed, in a version that fits."""
    version = installed.get(package["name"])
    return version is not None and fnmatch.fnmatchcase(version, package["version"] or "*")


def _chosen(packages: Sequence[Mapping[str, str]], available: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return each package with the first version on offer that fits; sources list the newest first."""
    chosen = []
    for package in packages:
        offered = available.get(package["name"], ())
        fits = [version for version in offered if not package["version"] or fnmatch.fnmatchcase(version, package["version"])]
        if not fits:
            what = f"{package['name']} {package['version']}".strip()
            shown = ", ".join(offered[:4]) or "none"
            raise _Refusal(
                f"no package source offers {what} (on offer: {shown})",
                "see that the mirror of gpu_driver_repo_url holds this release, and `apt-get update` ends without an error",
            )
        chosen.append({"name": package["name"], "version": fits[0]})
    return chosen


def _sources(vendor: str, host: Mapping[str, Any], known: Mapping[str, Any], series: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the package sources below the base URL, as deb822 fields, and what is pinned."""
    if vendor == "nvidia":
        folder = system_name(host).replace(".", "")
        return {
            "key": known["key_url"].format(system=folder),
            "fingerprint": known["key_fingerprint"],
            "entries": [{"folder": f"{folder}/x86_64/", "suite": "/", "component": ""}],
            # Every package of the driver has its version; one that is left behind breaks it.
            "pin": {
                "packages": "*nvidia* libcuda1 libxnvctrl0",
                "version": f"{version}-*",
                "but": "nvidia-container-toolkit* libnvidia-container*",
            },
        }
    release = series["releases"][version]
    codename = known["codename"].get(system_name(host), host["codename"])
    folders = (f"amdgpu/{release['driver']}/ubuntu", f"rocm/apt/{release['rocm']}")
    pattern = known["package_version"].format(module=series["module"], build=release["build"])
    return {
        "key": known["key_url"],
        "fingerprint": known["key_fingerprint"],
        "entries": [{"folder": folder, "suite": codename, "component": "main"} for folder in folders],
        "pin": {"packages": "amdgpu-dkms amdgpu-dkms-firmware", "version": pattern, "but": ""},
        "tools": {"packages": " ".join(known["tool_packages"]), "version": _tool_version(version)},
    }


def offered(madison: str) -> dict[str, list[str]]:
    """Return versions by package, newest first, from what `apt-cache madison` prints."""
    found: dict[str, list[str]] = {}
    for line in madison.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 3 and parts[1] not in found.setdefault(parts[0], []):
            found[parts[0]].append(parts[1])
    return found


def rack_batches(hosts: Iterable[str], racks: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return hosts ordered by rack, and the size of each rack: what `serial` takes.

    Args:
        hosts: Names, in the inventory's order.
        racks: The rack of each host; a host without one is a rack of its own, because nothing says whom it would take along.
    """
    grouped: dict[str, list[str]] = {}
    for host in hosts:
        rack = racks.get(host) or ""
        grouped.setdefault(f"rack {rack}" if rack else f"host {host}", []).append(host)
    return {"hosts": [host for members in grouped.values() for host in members], "sizes": [len(members) for members in grouped.values()]}


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"gpu_driver_plan": plan, "gpu_driver_offered": offered, "gpu_driver_racks": rack_batches}
