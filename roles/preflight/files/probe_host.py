"""Print facts of this host as JSON, and with `--check` verdicts on them. Reads only; needs Python 3.9 and no packages.

    python3 probe_host.py                      {"schema": ..., "facts": {...}}
    python3 probe_host.py --check '{"min_memory_gib": 2, ...}'   the same with "verdicts": [...] (`-`: read them from stdin)

`primus-bootstrap probe` and the role `preflight` send this file through `probe_host.sh`, followed by the options on stdin:
`{"check": {...}, "become_password": "...", "root": "/"}`. `root` is the top of the file tree to read, for tests.
It is one long file because it is sent on its own. Slow imports are inside the functions that need them.
"""

# pathlib costs milliseconds on every host:
# ruff: noqa: PTH110, PTH115, PTH118, PTH119, PTH123, PTH208
from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # typing itself costs 5 ms on every host
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SCHEMA = "primus.probe/1"
VERDICT_SCHEMA = "primus.verdict/1"
GIB = 1 << 30
# Time limit of a lookup that can hang (name servers, sudo).
LOOKUP_TIMEOUT_S = 3.0
ROOT = "/"


def read(*parts: str) -> str | None:
    """Return a small file's text without its line end, or None if it cannot be read."""
    try:
        with open(os.path.join(ROOT, *parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def names_in(*parts: str) -> list[str]:
    """Return the sorted names in a folder; empty if it does not exist."""
    try:
        return sorted(os.listdir(os.path.join(ROOT, *parts)))
    except OSError:
        return []


def number(text: str | None) -> int | None:
    """Return a whole number, or None if the text is no number or negative (the kernel's value for unknown)."""
    try:
        value = int(text or "", 0)
    except ValueError:
        return None
    return value if value >= 0 else None


def link_name(*parts: str) -> str:
    """Return the last part of a link's target, or an empty string."""
    try:
        return os.path.basename(os.readlink(os.path.join(ROOT, *parts)))
    except OSError:
        return ""


def os_release() -> dict[str, str]:
    """Return id, version and name of the distribution from os-release."""
    pairs = (line.split("=", 1) for line in (read("etc/os-release") or "").splitlines() if "=" in line)
    values = {key: value.strip("\"'") for key, value in pairs}
    return {"id": values.get("ID", ""), "version": values.get("VERSION_ID", ""), "name": values.get("PRETTY_NAME", "")}


def memory() -> dict[str, float]:
    """Return memory and swap in GiB."""
    lines = (line.split(":", 1) for line in (read("proc/meminfo") or "").splitlines() if ":" in line)
    kib = {key: number(value.split()[0]) or 0 for key, value in lines}

    def gib(key: str) -> float:
        return round(kib.get(key, 0) / (1 << 20), 2)

    return {"total_gib": gib("MemTotal"), "available_gib": gib("MemAvailable"), "swap_gib": gib("SwapTotal")}


def disk(path: str) -> dict[str, Any]:
    """Return the space of a path's file system in GiB, and free inodes in percent (None: the file system has no inodes)."""
    state = os.statvfs(os.path.join(ROOT, path.lstrip("/")))
    return {
        "path": path,
        "size_gib": round(state.f_blocks * state.f_frsize / GIB, 2),
        "free_gib": round(state.f_bavail * state.f_frsize / GIB, 2),
        "free_inodes_percent": round(100 * state.f_favail / state.f_files, 1) if state.f_files else None,
        "read_only": bool(state.f_flag & os.ST_RDONLY),
    }


def disks(paths: list[str]) -> list[dict[str, Any]]:
    """Return the space at each path that exists."""
    return [disk(path) for path in paths if os.path.exists(os.path.join(ROOT, path.lstrip("/")))]


def time_synchronised() -> bool | None:
    """Return whether a time service synchronises the kernel's clock, or None if the kernel does not tell.

    adjtimex(2) with no mode set only reads; its result 5 (TIME_ERROR) and the bit STA_UNSYNC (0x40) both mean no.
    """
    import ctypes  # noqa: PLC0415 (takes 10 ms and only this function needs it)

    buffer = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0 or sys.maxsize < 1 << 32:
        return None
    # struct timex of a 64-bit kernel: modes, offset, freq, maxerror, esterror (8 bytes each, padded), then the status.
    return state != 5 and not int.from_bytes(buffer.raw[40:44], sys.byteorder) & 0x40


def sudo(password: str | None) -> tuple[str, str]:  # noqa: PLR0911 (one for each result)
    """Return root | yes | password (the given one works) | wants_password | wrong_password | no, and sudo's message."""
    if os.geteuid() == 0:
        return "root", ""
    import subprocess  # noqa: PLC0415 (takes 8 ms and root does not need it)

    def attempt(flags: list[str], text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sudo", *flags, "true"], input=text, capture_output=True, text=True, errors="replace", timeout=LOOKUP_TIMEOUT_S, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )  # fmt: skip

    try:
        first = attempt(["-n"], "")
        if first.returncode == 0:
            return "yes", ""
        message = " ".join(first.stderr.split())
        if "password is required" not in message and "authentication is required" not in message:
            return "no", message
        if not password:
            return "wants_password", message
        second = attempt(["-S", "-p", ""], password + "\n")
        return ("password", "") if second.returncode == 0 else ("wrong_password", " ".join(second.stderr.split()))
    except FileNotFoundError:
        return "no", "sudo is not installed"
    except subprocess.TimeoutExpired:
        return "no", f"sudo gave no answer within {LOOKUP_TIMEOUT_S:g} s"


def gpus() -> list[dict[str, Any]]:
    """Return display controllers (class 0x03) and processing accelerators (0x12) on the PCI bus, counted by id.

    Virtual functions are not counted if their physical function is on this host too.
    """
    found: dict[tuple[str, ...], int] = {}
    for slot in names_in("sys/bus/pci/devices"):
        folder = ("sys/bus/pci/devices", slot)
        code = read(*folder, "class") or ""
        if code[:4] not in ("0x03", "0x12") or link_name(*folder, "physfn"):
            continue
        ids = [(read(*folder, name) or "0x????")[2:].lower() for name in ("vendor", "device", "subsystem_device")]
        key = (ids[0] + ":" + ids[1], ids[2], link_name(*folder, "driver"), code)
        found[key] = found.get(key, 0) + 1
    names = ("id", "subsystem_device", "driver", "class")
    return [{**dict(zip(names, key)), "count": count} for key, count in sorted(found.items())]  # noqa: B905 (3.9 has no strict)


def ipv4(name: str) -> str:
    """Return the first IPv4 address of an interface, or an empty string."""
    import fcntl  # noqa: PLC0415
    import socket  # noqa: PLC0415

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, 0x8915, name.encode()[:15].ljust(40, b"\0"))  # SIOCGIFADDR, netdevice(7)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def nics() -> list[dict[str, Any]]:
    """Return network interfaces that have hardware or an address (veth pairs of pods have neither)."""
    found = []
    for name in names_in("sys/class/net"):
        folder = ("sys/class/net", name)
        hardware = os.path.exists(os.path.join(ROOT, *folder, "device"))
        address = ipv4(name) if ROOT == "/" else ""
        if name == "lo" or not (hardware or address):
            continue
        found.append(
            {
                "name": name,
                "state": read(*folder, "operstate") or "unknown",
                "speed_mbit_per_s": number(read(*folder, "speed")),
                "mtu": number(read(*folder, "mtu")),
                "mac": read(*folder, "address") or "",
                "address": address,
                "driver": link_name(*folder, "device/driver"),
            }
        )
    return found


def rdma() -> list[dict[str, str]]:
    """Return the ports of RDMA devices."""
    found = []
    for device in names_in("sys/class/infiniband"):
        for port in names_in("sys/class/infiniband", device, "ports"):
            folder = ("sys/class/infiniband", device, "ports", port)
            values = {name: read(*folder, name) or "" for name in ("state", "link_layer", "rate")}
            found.append({"device": device, "port": port, **values})
    return found


def default_nic() -> str:
    """Return the interface of the IPv4 default route, or an empty string."""
    rows = (line.split() for line in (read("proc/net/route") or "").splitlines()[1:])
    return next((row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"), "")


def virtualisation() -> str:
    """Return the kind of container, `vm` for a virtual machine, or `none`."""
    named = read("run/systemd/container")
    if not named:
        files = (("run/.containerenv", "podman"), (".dockerenv", "docker"))
        named = next((kind for path, kind in files if os.path.exists(os.path.join(ROOT, path))), "")
    if named:
        return named
    return "vm" if " hypervisor" in (read("proc/cpuinfo") or "")[:8192] else "none"


def listening() -> dict[int, dict[str, int]]:
    """Return the TCP ports that are listened on, each with the inodes of its sockets and the uid that opened them."""
    found: dict[int, dict[str, int]] = {}
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (read(table) or "").splitlines()[1:]:
            row = line.split()
            if row[3] == "0A":
                found.setdefault(int(row[1].rsplit(":", 1)[1], 16), {})[row[9]] = int(row[7])
    return found


def resolve(names: list[str]) -> dict[str, list[str] | None]:
    """Return the addresses that each name resolves to; None if the lookup timed out."""
    import socket  # noqa: PLC0415
    import threading  # noqa: PLC0415

    found: dict[str, list[str] | None] = dict.fromkeys(names)

    def look_up(name: str) -> None:
        try:
            found[name] = sorted({str(answer[4][0]) for answer in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        except OSError:
            found[name] = []

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    deadline = time.monotonic() + LOOKUP_TIMEOUT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def read_facts(options: dict[str, Any]) -> dict[str, Any]:
    """Return all facts of this host."""
    started = time.time()
    check = options.get("check") or {}
    name = os.uname()
    can_sudo, sudo_message = sudo(options.get("become_password"))
    return {
        "hostname": name.nodename,
        "kernel": name.release,
        "arch": name.machine,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "os": os_release(),
        "cores": os.cpu_count(),
        "memory": memory(),
        "disks": disks(check.get("disk_paths") or ["/", "/var", "/tmp", "/home"]),  # noqa: S108 (its space is what is read)
        "clock": {"read_at": started, "synchronised": time_synchronised()},
        "sudo": can_sudo,
        "sudo_message": sudo_message,
        "gpus": gpus(),
        "nics": nics(),
        "rdma": rdma(),
        "default_nic": default_nic(),
        "machine_id": read("etc/machine-id") or "",
        "boot_id": read("proc/sys/kernel/random/boot_id") or "",
        "virtualisation": virtualisation(),
        "uptime_s": int(float((read("proc/uptime") or "0").split()[0])),
        "resolved": resolve([name.nodename, *check.get("names", ())]),
        "listening": sorted(listening()),
    }


def account_of(pid: str) -> int | None:
    """Return the uid of a process; None if it has ended."""
    rows = ((read("proc", pid, "status") or "").partition("\nUid:")[2].split() or [""])[:1]
    return int(rows[0]) if rows[0].isdigit() else None


def holders(port: int, expected: str) -> set[str] | None:
    """Return the names of the programs that listen on a port; None if this user cannot see whose socket it is.

    Root of a container cannot see the open files of other accounts' processes. If the account that opened the socket runs only one program,
    that program is returned. If it runs several, and the expected program is one of them, the expected one is returned.
    """
    sockets = listening().get(port, {})
    wanted = {f"socket:[{inode}]" for inode in sockets}
    names, hidden, suspects = set(), False, set()
    for pid in filter(str.isdigit, names_in("proc")):
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except PermissionError:
            hidden = True
            if account_of(pid) in sockets.values():
                suspects.add(read("proc", pid, "comm") or "?")
        except OSError:
            continue  # it ended meanwhile
        else:
            if links & wanted:
                names.add(read("proc", pid, "comm") or "?")
    if names or not hidden:
        return names
    return suspects if len(suspects) == 1 else {expected} & suspects or None


# For each check: the variable or document with the requirement, and the fix; `{device}` is the checked object.
CHECK_TEXTS = {
    "os": ("preflight_supported_os", "install a tested distribution, or accept this one: set preflight_untested_os: true"),
    "python": ("preflight_min_python", "install a newer python3, or set ansible_python_interpreter to one"),
    "sudo": (
        "ansible_become",
        "add a sudo rule for this user, or pass the password with --ask-become-pass or ansible_become_password in a Vault file",
    ),
    "time_sync": ("preflight_require_time_sync", "start chrony (the phase baseline does), or set preflight_require_time_sync: false"),
    "disk": ("preflight_min_disk_gib", "free space below {device}, or lower preflight_min_disk_gib"),
    "memory": ("preflight_min_memory_gib", "add memory, lower preflight_min_memory_gib, or remove this host from hosts.yaml"),
    "port": ("preflight_ports", "stop that program, or move it to another port"),
    "machine_id": ("machine-id(5)", "rm -f /etc/machine-id && systemd-machine-id-setup, then reboot"),
    "mtu": ("preflight_min_mtu", "set the MTU of {device} and of its switch port, or lower preflight_min_mtu"),
    "name_resolution": ("preflight_resolve_names", "add {device} to DNS or to /etc/hosts; check /etc/resolv.conf"),
}


def record(  # noqa: PLR0913 (the fields of a record)
    check: str, verdict: str, expected: object, found: object, reason: str, *, device: str = "", unit: str = ""
) -> dict[str, Any]:
    """Return one verdict record. A pass has no reason; only fail and unknown have a fix."""
    source, fix = CHECK_TEXTS[check]
    return {
        "check": check,
        "verdict": verdict,
        "expected": str(expected),
        "found": "" if found is None else str(found),
        "unit": unit,
        "source": source,
        "reason": "" if verdict == "pass" else reason,
        "fix": fix.format(device=device or "it") if verdict in ("fail", "unknown") else "",
        "device": device,
        "serial": "",
    }


def outcome(right: bool | None, /) -> str:  # noqa: FBT001
    """Return the verdict for True, False, or None (unknown)."""
    return "unknown" if right is None else "pass" if right else "fail"


def check_os(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check that the distribution and its release were tested. Another one is unknown if the site accepts it."""
    names, release = check["supported_os"], f"{facts['os']['id']} {facts['os']['version']}".strip()
    known = any(release == name or release.startswith(name + ".") for name in names)
    accepted = bool(check.get("untested_os"))
    reason = f"{facts['os']['name']} is not a tested distribution" if release else "there is no /etc/os-release"
    found = record("os", outcome(True if known else None if accepted or not release else False), ", ".join(names), release, reason)
    if accepted and release and not known:
        found["fix"] = "apply to one host first; remove preflight_untested_os to refuse such hosts"
    yield found


def check_python(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check that Python is new enough for Ansible's modules."""
    found, wanted = ([int(part) for part in text.split(".")[:2]] for text in (facts["python"], check["min_python"]))
    yield record("python", outcome(found >= wanted), f">= {check['min_python']}", facts["python"], f"Python {facts['python']} is too old")


def check_sudo(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check that the user can become root: from Ansible's attempt if there was one, else from sudo."""
    from_sudo = {"works": facts["sudo"] in ("root", "yes", "password"), "message": facts["sudo_message"]}
    become = check.get("become") or from_sudo
    reason = f"cannot become root: {become['message'] or 'no reason given'}"
    yield record("sudo", outcome(become["works"]), "root", "root" if become["works"] else facts["sudo"], reason)


def check_time_sync(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check that a time service synchronises the clock. The controller measures the offset itself."""
    synchronised = facts["clock"]["synchronised"]
    verdict = "skipped" if synchronised is False and not check["require_time_sync"] else outcome(synchronised)
    reason = "the kernel does not tell" if synchronised is None else "no time service synchronises the clock yet"
    yield record("time_sync", verdict, "synchronised", "synchronised" if synchronised else "not synchronised", reason)


def check_disks(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check the free space for packages, images and logs."""
    found = {entry["path"]: entry for entry in facts["disks"]}
    for path in check["disk_paths"]:
        entry, wanted = found.get(path), check["min_disk_gib"]
        if entry is None:
            yield record("disk", "skipped", f">= {wanted:g}", None, f"there is no {path} on this host", device=path, unit="GiB")
            continue
        free, inodes = entry["free_gib"], entry["free_inodes_percent"]
        reason = f"{path} has {free} GiB free, {wanted:g} are needed"
        if entry["read_only"]:
            reason = f"{path} is mounted read-only (dmesg may show a disk error)"
        elif inodes is not None and inodes < 1:
            reason = f"{path} has {inodes} % of its inodes left"
        right = free >= wanted and not entry["read_only"] and (inodes is None or inodes >= 1)
        yield record("disk", outcome(right), f">= {wanted:g}", free, reason, device=path, unit="GiB")


def check_memory(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check the size of the memory."""
    total, wanted = facts["memory"]["total_gib"], check["min_memory_gib"]
    reason = f"{total} GiB of memory, {wanted:g} are needed" if total else "/proc/meminfo has no MemTotal"
    yield record("memory", outcome(total >= wanted if total else None), f">= {wanted:g}", total or None, reason, unit="GiB")


def check_ports(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check that ports are free or in use by the expected programs."""
    for entry in check["ports"]:
        port, expected = entry["port"], entry["process"]
        name = expected[:15]  # the kernel truncates program names
        names = holders(port, name) if port in facts["listening"] else set()
        right = None if names is None else names <= {name}
        who = ", ".join(sorted(names)) if names else "free" if names is not None else "a program that this user cannot see"
        yield record(
            "port", outcome(right), f"free or {expected}", who, f"port {port} is in use by {who}; {expected} needs it", device=str(port)
        )


def check_machine_id(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 (all checks have the same signature)
    """Check the format of the machine-id. The controller checks that it is unique."""
    name = facts["machine_id"]
    reason = f"/etc/machine-id is {'malformed' if name else 'empty or missing'}"
    yield record("machine_id", outcome(len(name) == 32), "32 hex digits", name, reason)


def check_network(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Check the MTU of the default route's interface, and that the required names resolve."""
    name, wanted = facts["default_nic"], check["min_mtu"]
    mtu = next((nic["mtu"] for nic in facts["nics"] if nic["name"] == name), None)
    reason = f"{name} has MTU {mtu}" if mtu else "there is no IPv4 default route whose MTU could be read"
    yield record("mtu", outcome(mtu >= wanted if mtu else None), f">= {wanted}", mtu, reason, device=name, unit="bytes")
    for name, addresses in facts["resolved"].items():
        right = None if addresses is None else bool(addresses)
        reason = f"{name} has no address" if addresses is not None else f"the lookup of {name} gave no answer within {LOOKUP_TIMEOUT_S:g} s"
        yield record("name_resolution", outcome(right), "an address", ", ".join(addresses or ()), reason, device=name)


CHECK_FUNCTIONS = (
    check_os,
    check_python,
    check_sudo,
    check_time_sync,
    check_disks,
    check_memory,
    check_ports,
    check_machine_id,
    check_network,
)


def evaluate(facts: dict[str, Any], check: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the verdict records of all checks; skipped ones have the inventory's reason."""
    verdicts = []
    for function in CHECK_FUNCTIONS:
        started = time.time()
        for found in function(facts, check):
            skip_reason = check["skip"].get(found["check"])
            if skip_reason is not None:
                found.update(verdict="skipped", source="preflight_skip", reason=skip_reason, fix="")
            spent = round(time.time() - started, 4)
            verdicts.append({**found, "host": check["host"], "started": started, "seconds": spent, "schema": VERDICT_SCHEMA})
    return verdicts


def main(arguments: list[str]) -> None:
    """Print facts, and verdicts if requirements are given, as one JSON object on one line."""
    global ROOT  # noqa: PLW0603 (set once, before anything is read)
    options: dict[str, Any] = {}
    if arguments[:1] == ["--check"]:
        options = {"check": json.loads(sys.stdin.read() if arguments[1:] == ["-"] else arguments[1])}
    elif sys.argv[0] == "-c":
        options = json.loads(sys.stdin.read().strip() or "{}")
    ROOT = options.get("root") or "/"
    facts = read_facts(options)
    answer: dict[str, Any] = {"schema": SCHEMA, "facts": facts}
    if options.get("check"):
        answer["verdicts"] = evaluate(facts, options["check"])
    facts["clock"]["done_at"] = time.time()
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # Do not wait for a lookup that still hangs.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
