# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `gpu_driver`: compute which packages a host gets or why none, and which hosts reboot together."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Outcomes of a plan.
SKIPPED, UNKNOWN, REFUSED, PRESENT, INSTALL = "skipped", "unknown", "refused", "present", "install"
MODULES = {"amd": "amdgpu", "nvidia": "nvidia"}
# Rocky and AlmaLinux build their kernels from RHEL's sources. AMD's table lists Rocky, NVIDIA's lists both.
_APT = ("ubuntu", "debian")
_LIKE_RHEL = ("rhel", "rocky", "almalinux")


class _Refusal(Exception):  # noqa: N818 (a decision, not an error)
    """The driver must not be installed; has the reason and a fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


def plan(
    detected: Mapping[str, Any],
    host: Mapping[str, Any],
    request: Mapping[str, Any],
    releases: Mapping[str, Any],
    available: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return what to do on a host.

    Args:
        detected: Result of the detection of primus_bootstrap/launch: verdict, vendor, model, reason.
        host: Result of the module gpu_driver_host.
        request: The options state, version, tools and allow_secure_boot.
        releases: Content of files/releases.yml.
        available: Versions by package in the host's package sources; None if they were not read yet.

    Returns:
        `outcome`; `reason` and `fix` if the outcome is neither install nor present; else module, its expected version, packages, sources.
    """
    nothing = {"module": "", "module_version": "", "packages": [], "sources": {}, "fabric": False, "due": False}
    empty = {**nothing, "reason": "", "fix": ""}
    if detected["verdict"] == "none":
        return {**empty, "outcome": SKIPPED, "reason": "this host has no GPU on its PCI bus"}
    if host["container"]:
        return {**empty, "outcome": SKIPPED, "reason": f"the driver belongs to the machine that runs this {host['container']} container"}
    try:
        return {**empty, **_plan(detected, host, request, releases, available)}
    except _Refusal as refusal:
        outcome = UNKNOWN if detected["verdict"] == "unknown" else REFUSED
        return {**empty, "outcome": outcome, "reason": refusal.reason, "fix": refusal.fix}


def _plan(
    detected: Mapping[str, Any], host: Mapping[str, Any], request: Mapping[str, Any], releases: Mapping[str, Any], available: Any
) -> dict[str, Any]:
    vendor = detected["vendor"]
    if detected["verdict"] != "ok" or vendor not in MODULES:
        raise _Refusal(
            f"the GPUs of this host cannot be determined: {detected['reason'] or detected['verdict']}",
            "run `primus-bootstrap probe`; use GPUs of one vendor per host, or install the driver yourself (gpu_driver_state: present)",
        )
    version = request["version"]
    found = {"module": MODULES[vendor], "fabric": _has_fabric(detected, host)}
    if request["state"] == "present" and not version:
        return {"outcome": PRESENT, **found}
    series = _series(vendor, version, releases[vendor])
    found["module_version"] = series.get("module", version)
    if request["state"] == "present":
        return {"outcome": PRESENT, **found}
    kernel_fits(detected["model"], host, version, series)
    if host["distribution"] not in _APT:
        raise _Refusal(
            f"this role installs drivers on {' and '.join(_APT)} only, not on {host['distribution']}",
            "install the vendor's packages yourself, and set gpu_driver_state: present with gpu_driver_version to check them",
        )
    if host["architecture"] not in releases[vendor]["architectures"]:
        raise _Refusal(
            f"{vendor} offers its driver for {' and '.join(releases[vendor]['architectures'])}, not for {host['architecture']}",
            "set gpu_driver_state: present, and install the driver yourself",
        )
    if host["secure_boot"] and not request["allow_secure_boot"]:
        raise _Refusal(
            "Secure Boot is on, and the kernel rejects modules that are built on the host and not signed with an enrolled key",
            "enrol the key of DKMS (mokutil --import) and set gpu_driver_allow_secure_boot, or turn Secure Boot off in the firmware",
        )
    if host["closed"]:
        raise _Refusal(
            "apt on this host uses the bundle only (the role airgap sets Dir::Etc::SourceParts to /dev/null), and a bundle has neither "
            "the vendor's packages nor its key",
            "set gpu_driver_state: present, and install the driver in the host's image or before airgap_bundle is set",
        )
    packages = _packages(host, request, releases[vendor], series, version, fabric=detected["model"] if found["fabric"] else "")
    found["due"] = any(not _is_installed(package, host["installed"]) for package in packages)
    if available is not None:
        patterns, packages = packages, _with_versions(packages, available)
        # The first matching version is the newest. An installed older version that matches stays.
        packages = [package for package, pattern in zip(packages, patterns, strict=True) if not _is_installed(pattern, host["installed"])]
    return {"outcome": INSTALL, **found, "packages": packages, "sources": _sources(vendor, host, releases[vendor], series, version)}


def _series(vendor: str, version: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the series of a version. AMD's versions are listed; of NVIDIA's only the branch is."""
    name = ".".join(version.split(".")[: 1 if vendor == "nvidia" else 2])
    series: Mapping[str, Any] | None = known["series"].get(name)
    if vendor == "nvidia":
        choices = [f"{branch}.…" for branch in known["series"]]
        fits = series is not None and re.fullmatch(r"\d{3}\.\d+(\.\d+)?", version)
    else:
        choices = [release for listed in known["series"].values() for release in listed["releases"]]
        fits = series is not None and version in series["releases"]
    if not fits or series is None:
        raise _Refusal(
            f"gpu_driver_version {version or '(none)'} is not a known release for {vendor}",
            f"choose from {', '.join(choices)}, or add the release to roles/gpu_driver/files/releases.yml",
        )
    return series


def kernel_fits(model: str, host: Mapping[str, Any], version: str, series: Mapping[str, Any]) -> None:
    """Check that the vendor lists the model, distribution and kernel for the release.

    Raises:
        _Refusal: One is not listed; the fix has the supported ones.
    """
    names = model.split("/")  # products with the same PCI id; all of them must be supported
    for name in names:
        if name not in series["models"]:
            raise _Refusal(
                f"{version} does not support {name}", f"choose a release that does; {version} supports {', '.join(series['models'])}"
            )
        systems = series["models"][name] or series["systems"]
        system, kernel = system_name(host), host["kernel"]
        if system not in systems:
            shown = ", ".join(systems)
            raise _Refusal(f"{version} supports {name} on {shown}, not on {system}", f"install one of {shown}, or choose another release")
        if ".".join(kernel.split(".")[:2]) not in systems[system]:
            shown = ", ".join(systems[system])
            raise _Refusal(
                f"{version} supports {name} on {system} with kernels {shown}, but {kernel} runs",
                f"boot a kernel of {shown} (playbooks/day2/reboot_node.yml), or choose another release",
            )


def system_name(host: Mapping[str, Any]) -> str:
    """Return the distribution as in releases.yml: ubuntu24.04, debian12, rhel9."""
    if host["distribution"] == "ubuntu":
        return f"ubuntu{host['version']}"
    name = "rhel" if host["distribution"] in _LIKE_RHEL else host["distribution"]
    return f"{name}{host['version'].split('.')[0]}"


def _has_fabric(detected: Mapping[str, Any], host: Mapping[str, Any]) -> bool:
    """Return whether the GPUs use NVSwitches, which need the fabric manager. Those of B200 are not on the PCI bus."""
    return bool(detected["vendor"] == "nvidia" and (host["nvswitches"] or detected["model"] == "B200"))


def _packages(  # noqa: PLR0913 (all inputs of one decision)
    host: Mapping[str, Any], request: Mapping[str, Any], known: Mapping[str, Any], series: Mapping[str, Any], version: str, *, fabric: str
) -> list[dict[str, str]]:
    """Return package names, with version patterns for packages of the release. `fabric` is the model, if it has NVSwitches."""
    build = series.get("releases", {}).get(version, {}).get("build", "")
    pattern = known["package_version"].format(module=series.get("module", ""), build=build, version=version)
    drivers = [*known["driver_packages"], *(series.get("fabric_packages", ()) if fabric else ())]
    kernel = [name.format(kernel=host["kernel"]) for name in known.get("kernel_packages", {}).get(host["distribution"], ())]
    tools = [*known["tool_packages"], *request["tools"]]
    return [
        {"name": f"linux-headers-{host['kernel']}", "version": ""},  # the module is built against them
        *({"name": name, "version": ""} for name in (*kernel, *known.get("subnet_manager", {}).get(fabric, ()))),
        *({"name": name, "version": pattern} for name in drivers),
        *({"name": name, "version": _tool_version(version) if known.get("tool_version") else ""} for name in tools),
    ]


def _tool_version(release: str) -> str:
    """Return the version pattern of ROCm packages, which have the release as a number. Distributions have packages with the same names."""
    major, minor, patch = (int(part) for part in release.split("."))
    return f"*.{major}{minor:02}{patch:02}-*"


def _is_installed(package: Mapping[str, str], installed: Mapping[str, str]) -> bool:
    """Return whether a package is installed in a matching version."""
    version = installed.get(package["name"])
    return version is not None and fnmatch.fnmatchcase(version, package["version"] or "*")


def _with_versions(packages: Sequence[Mapping[str, str]], available: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return each package with the first available version that matches; sources list the newest first."""
    chosen = []
    for package in packages:
        offered = available.get(package["name"], ())
        fits = [version for version in offered if not package["version"] or fnmatch.fnmatchcase(version, package["version"])]
        if not fits:
            what = f"{package['name']} {package['version']}".strip()
            shown = ", ".join(offered[:4]) or "none"
            raise _Refusal(
                f"no package source has {what} (available: {shown})",
                "check that `apt-get update` succeeds on the host and that gpu_driver_repo_url has this release",
            )
        chosen.append({"name": package["name"], "version": fits[0]})
    return chosen


def _sources(vendor: str, host: Mapping[str, Any], known: Mapping[str, Any], series: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the package sources below the base URL as deb822 fields, and the pinned packages."""
    machine = known["architectures"][host["architecture"]]
    if vendor == "nvidia":
        folder = system_name(host).replace(".", "")
        return {
            "key": known["key_url"].format(system=folder, architecture=machine["folder"]),
            "fingerprint": known["key_fingerprint"],
            "architecture": machine["apt"],
            "entries": [{"folder": f"{folder}/{machine['folder']}/", "suite": "/", "component": ""}],
            # All packages of the driver must have the same version.
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
        "architecture": machine["apt"],
        "entries": [{"folder": folder, "suite": codename, "component": "main"} for folder in folders],
        "pin": {"packages": "amdgpu-dkms amdgpu-dkms-firmware", "version": pattern, "but": ""},
        "tools": {"packages": " ".join(known["tool_packages"]), "version": _tool_version(version)},
    }


def available_versions(madison: str) -> dict[str, list[str]]:
    """Return versions by package, newest first, from the output of `apt-cache madison`."""
    found: dict[str, list[str]] = {}
    for line in madison.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 3 and parts[1] not in found.setdefault(parts[0], []):
            found[parts[0]].append(parts[1])
    return found


def rack_batches(hosts: Iterable[str], racks: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return hosts ordered by rack, and the size of each rack for `serial`.

    Args:
        hosts: Names, in the order of the inventory.
        racks: The rack of each host. A host without a rack is a group of its own.
    """
    grouped: dict[str, list[str]] = {}
    for host in hosts:
        rack = racks.get(host) or ""
        grouped.setdefault(f"rack {rack}" if rack else f"host {host}", []).append(host)
    return {"hosts": [host for members in grouped.values() for host in members], "sizes": [len(members) for members in grouped.values()]}


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"gpu_driver_plan": plan, "gpu_driver_available": available_versions, "gpu_driver_racks": rack_batches}
