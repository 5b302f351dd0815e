"""Say as JSON what this host is, and with `--check` whether that is enough: reads only, needs nothing but Python 3.9.

    python3 probe_host.py                      {"schema": ..., "facts": {...}}
    python3 probe_host.py --check '{"min_memory_gib": 2, ...}'   the same with "verdicts": [...] (`-`: read them from stdin)

`primus-bootstrap probe` and the role `preflight` send this file through `probe_host.sh`; the options then follow it on
stdin: `{"check": {...}, "become_password": "...", "root": "/"}`. `root` is the top of the file tree to read, for tests.
It is one file, and longer than the others, because it travels alone; imports that cost milliseconds stand where they are used.
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
# How long a look-up that may hang (a name server, sudo's own look-ups) is waited for.
PATIENCE_S = 3.0
ROOT = "/"


def read(*parts: str) -> str | None:
    """Return a small file's text without its line end, or None where it cannot be read."""
    try:
        with open(os.path.join(ROOT, *parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def listed(*parts: str) -> list[str]:
    """Return the sorted names in a folder; none where there is no such folder."""
    try:
        return sorted(os.listdir(os.path.join(ROOT, *parts)))
    except OSError:
        return []


def number(text: str | None) -> int | None:
    """Return a whole number, or None where the text is none or negative (the kernel's word for not known)."""
    try:
        value = int(text or "", 0)
    except ValueError:
        return None
    return value if value >= 0 else None


def link_name(*parts: str) -> str:
    """Return the last part of what a link points to, or an empty string."""
    try:
        return os.path.basename(os.readlink(os.path.join(ROOT, *parts)))
    except OSError:
        return ""


def os_release() -> dict[str, str]:
    """Return the distribution as os-release names it."""
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
    """Return the space of the file system that holds a path, in GiB; inodes in percent (None: the file system has none)."""
    state = os.statvfs(os.path.join(ROOT, path.lstrip("/")))
    return {
        "path": path,
        "size_gib": round(state.f_blocks * state.f_frsize / GIB, 2),
        "free_gib": round(state.f_bavail * state.f_frsize / GIB, 2),
        "free_inodes_percent": round(100 * state.f_favail / state.f_files, 1) if state.f_files else None,
        "read_only": bool(state.f_flag & os.ST_RDONLY),
    }


def disks(paths: list[str]) -> list[dict[str, Any]]:
    """Return the space at each path that exists here."""
    return [disk(path) for path in paths if os.path.exists(os.path.join(ROOT, path.lstrip("/")))]


def time_synchronised() -> bool | None:
    """Return whether the kernel's clock is kept by a time service, or None where the kernel does not say.

    adjtimex(2) with no mode set only reads; its result 5 (TIME_ERROR) and the bit STA_UNSYNC (0x40) both mean no.
    """
    import ctypes  # noqa: PLC0415 (10 ms that only this look-up needs)

    buffer = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0 or sys.maxsize < 1 << 32:
        return None
    # struct timex of a 64-bit kernel: modes, offset, freq, maxerror, esterror (8 bytes each, padded), then the status.
    return state != 5 and not int.from_bytes(buffer.raw[40:44], sys.byteorder) & 0x40


def sudo(password: str | None) -> tuple[str, str]:  # noqa: PLR0911 (one for each answer)
    """Return root | yes | password (the given one works) | wants_password | wrong_password | no, and sudo's own words."""
    if os.geteuid() == 0:
        return "root", ""
    import subprocess  # noqa: PLC0415 (8 ms that root does not need)

    def attempt(flags: list[str], text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sudo", *flags, "true"], input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )  # fmt: skip

    try:
        first = attempt(["-n"], "")
        if first.returncode == 0:
            return "yes", ""
        words = " ".join(first.stderr.split())
        if "password is required" not in words and "authentication is required" not in words:
            return "no", words
        if not password:
            return "wants_password", words
        second = attempt(["-S", "-p", ""], password + "\n")
        return ("password", "") if second.returncode == 0 else ("wrong_password", " ".join(second.stderr.split()))
    except FileNotFoundError:
        return "no", "sudo is not installed"
    except subprocess.TimeoutExpired:
        return "no", f"sudo gave no answer within {PATIENCE_S:g} s"


def gpus() -> list[dict[str, Any]]:
    """Return display controllers (class 0x03) and processing accelerators (0x12) on the PCI bus, counted by id.

    A virtual function whose physical function is on this host as well is not counted again.
    """
    found: dict[tuple[str, ...], int] = {}
    for slot in listed("sys/bus/pci/devices"):
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
    """Return network interfaces with hardware behind them or an address on them (pods' veth pairs have neither)."""
    found = []
    for name in listed("sys/class/net"):
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
    for device in listed("sys/class/infiniband"):
        for port in listed("sys/class/infiniband", device, "ports"):
            folder = ("sys/class/infiniband", device, "ports", port)
            values = {name: read(*folder, name) or "" for name in ("state", "link_layer", "rate")}
            found.append({"device": device, "port": port, **values})
    return found


def default_nic() -> str:
    """Return the interface of the IPv4 default route, or an empty string."""
    rows = (line.split() for line in (read("proc/net/route") or "").splitlines()[1:])
    return next((row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"), "")


def virtualisation() -> str:
    """Return the container or the virtual machine that this host is, or none."""
    named = read("run/systemd/container")
    if not named:
        files = (("run/.containerenv", "podman"), (".dockerenv", "docker"))
        named = next((kind for path, kind in files if os.path.exists(os.path.join(ROOT, path))), "")
    if named:
        return named
    return "vm" if " hypervisor" in (read("proc/cpuinfo") or "")[:8192] else "none"


def listening() -> dict[int, dict[str, int]]:
    """Return the TCP ports on which something listens, each with the sockets' inodes and the number of the account that opened them."""
    found: dict[int, dict[str, int]] = {}
    for table in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (read(table) or "").splitlines()[1:]:
            row = line.split()
            if row[3] == "0A":
                found.setdefault(int(row[1].rsplit(":", 1)[1], 16), {})[row[9]] = int(row[7])
    return found


def resolve(names: list[str]) -> dict[str, list[str] | None]:
    """Return the addresses that each name has here; None where the look-up gave no answer in time."""
    import socket  # noqa: PLC0415
    import threading  # noqa: PLC0415

    found: dict[str, list[str] | None] = dict.fromkeys(names)

    def look_up(name: str) -> None:
        try:
            found[name] = sorted({str(answer[4][0]) for answer in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        except OSError:
            found[name] = []

    threads = [threading.Thread(target=look_up, args=(name,), daemon=True) for name in names]
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)


def read_facts(options: dict[str, Any]) -> dict[str, Any]:
    """Return everything that this host says about itself."""
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
    """Return the number of the account that a process runs as; None where it has ended."""
    rows = ((read("proc", pid, "status") or "").partition("\nUid:")[2].split() or [""])[:1]
    return int(rows[0]) if rows[0].isdigit() else None


def holders(port: int, meant: str) -> set[str] | None:
    """Return the names of the programs that listen on a port; None where this user may not see whose socket it is.

    Root of a container may not look into the processes of other accounts. Where the account that opened the socket runs one program only,
    it is that one; where it runs the program that is meant to listen there among others, it is taken to be the one that is meant.
    """
    sockets = listening().get(port, {})
    wanted = {f"socket:[{inode}]" for inode in sockets}
    names, hidden, suspects = set(), False, set()
    for pid in filter(str.isdigit, listed("proc")):
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
    return suspects if len(suspects) == 1 else {meant} & suspects or None


# Of each check: where its expectation stands, and how to mend what it finds; `{device}` is what it looked at.
CHECKS = {
    "os": ("preflight_supported_os", "install one of the supported systems, or add this one to preflight_supported_os at your own risk"),
    "python": ("preflight_min_python", "install a newer python3, or name one in ansible_python_interpreter"),
    "sudo": ("ansible_become", "give this user a sudo rule, or the password by --ask-become-pass or a Vault's ansible_become_password"),
    "time_sync": ("preflight_require_time_sync", "start chrony (the phase baseline does), or set preflight_require_time_sync: false"),
    "disk": ("preflight_min_disk_gib", "free space below {device}, or lower preflight_min_disk_gib"),
    "memory": ("preflight_min_memory_gib", "add memory, or take this host out of the cluster"),
    "port": ("preflight_ports", "stop that program, or move it to another port"),
    "machine_id": ("machine-id(5)", "rm -f /etc/machine-id && systemd-machine-id-setup, then reboot"),
    "mtu": ("preflight_min_mtu", "set the MTU of {device} and of its switch port, or lower preflight_min_mtu"),
    "name_resolution": ("preflight_resolve_names", "add {device} to DNS or to /etc/hosts; check /etc/resolv.conf"),
}


def record(  # noqa: PLR0913 (the fields of a record)
    check: str, verdict: str, expected: object, found: object, reason: str, *, device: str = "", unit: str = ""
) -> dict[str, Any]:
    """Return one verdict record; a pass needs no reason, and only what failed or is unknown has something to mend."""
    source, fix = CHECKS[check]
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
    """Return the verdict's word; None is unknown."""
    return "unknown" if right is None else "pass" if right else "fail"


def judge_os(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether the roles are written for the distribution and its release."""
    names, release = check["supported_os"], f"{facts['os']['id']} {facts['os']['version']}".strip()
    known = any(release == name or release.startswith(name + ".") for name in names)
    reason = f"{facts['os']['name']} is not a supported system" if release else "there is no /etc/os-release"
    yield record("os", outcome(known if release else None), ", ".join(names), release, reason)


def judge_python(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether Python is new enough for Ansible's modules."""
    found, wanted = ([int(part) for part in text.split(".")[:2]] for text in (facts["python"], check["min_python"]))
    yield record("python", outcome(found >= wanted), f">= {check['min_python']}", facts["python"], f"Python {facts['python']} is too old")


def judge_sudo(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether administrator rights can be had: as Ansible has just tried it, or else as sudo says."""
    said = {"works": facts["sudo"] in ("root", "yes", "password"), "message": facts["sudo_message"]}
    become = check.get("become") or said
    reason = f"cannot become root: {become['message'] or 'no reason given'}"
    yield record("sudo", outcome(become["works"]), "root", "root" if become["works"] else facts["sudo"], reason)


def judge_time_sync(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether something keeps the clock; how far it is off only the controller can tell, who knows when it asked."""
    kept = facts["clock"]["synchronised"]
    word = "skipped" if kept is False and not check["require_time_sync"] else outcome(kept)
    reason = "the kernel does not say" if kept is None else "no time service keeps the clock yet"
    yield record("time_sync", word, "synchronised", "synchronised" if kept else "not synchronised", reason)


def judge_disks(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether there is room where packages, images and logs go."""
    found = {entry["path"]: entry for entry in facts["disks"]}
    for path in check["disk_paths"]:
        entry, wanted = found.get(path), check["min_disk_gib"]
        if entry is None:
            yield record("disk", "skipped", f">= {wanted:g}", None, f"there is no {path} on this host", device=path, unit="GiB")
            continue
        free, inodes = entry["free_gib"], entry["free_inodes_percent"]
        reason = f"{path} has {free} GiB free, {wanted:g} are needed"
        if entry["read_only"]:
            reason = f"{path} is mounted read-only (dmesg may name a disk error)"
        elif inodes is not None and inodes < 1:
            reason = f"{path} has {inodes} % of its inodes left"
        right = free >= wanted and not entry["read_only"] and (inodes is None or inodes >= 1)
        yield record("disk", outcome(right), f">= {wanted:g}", free, reason, device=path, unit="GiB")


def judge_memory(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether there is memory enough for the smallest role."""
    total, wanted = facts["memory"]["total_gib"], check["min_memory_gib"]
    reason = f"{total} GiB of memory, {wanted:g} are needed" if total else "/proc/meminfo does not say"
    yield record("memory", outcome(total >= wanted if total else None), f">= {wanted:g}", total or None, reason, unit="GiB")


def judge_ports(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge whether ports are free, or held by the very programs that are meant to hold them."""
    for entry in check["ports"]:
        port, meant = entry["port"], entry["process"]
        name = meant[:15]  # as much as the kernel keeps of a program's name
        names = holders(port, name) if port in facts["listening"] else set()
        right = None if names is None else names <= {name}
        who = ", ".join(sorted(names)) if names else "free" if names is not None else "a program that this user may not see"
        yield record("port", outcome(right), f"free or {meant}", who, f"port {port} is held by {who}; {meant} needs it", device=str(port))


def judge_identity(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 (one shape for all)
    """Judge whether the host knows which machine it is; whether another has the same id is for the controller to see."""
    name = facts["machine_id"]
    reason = f"/etc/machine-id is {'malformed' if name else 'empty or missing'}"
    yield record("machine_id", outcome(len(name) == 32), "32 hex digits", name, reason)


def judge_network(facts: dict[str, Any], check: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Judge the frame size of the default route's interface, and whether the names that are needed resolve."""
    name, wanted = facts["default_nic"], check["min_mtu"]
    mtu = next((nic["mtu"] for nic in facts["nics"] if nic["name"] == name), None)
    reason = f"{name} has MTU {mtu}" if mtu else "there is no IPv4 default route whose MTU could be read"
    yield record("mtu", outcome(mtu >= wanted if mtu else None), f">= {wanted}", mtu, reason, device=name, unit="bytes")
    for name, addresses in facts["resolved"].items():
        right = None if addresses is None else bool(addresses)
        reason = f"{name} has no address" if addresses is not None else f"looking {name} up gave no answer within {PATIENCE_S:g} s"
        yield record("name_resolution", outcome(right), "an address", ", ".join(addresses or ()), reason, device=name)


JUDGES = (judge_os, judge_python, judge_sudo, judge_time_sync, judge_disks, judge_memory, judge_ports, judge_identity, judge_network)


def judge(facts: dict[str, Any], check: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the verdict records of every check; those that the site skips say why."""
    verdicts = []
    for judgement in JUDGES:
        started = time.time()
        for found in judgement(facts, check):
            waived = check["skip"].get(found["check"])
            if waived is not None:
                found.update(verdict="skipped", source="preflight_skip", reason=waived, fix="")
            spent = round(time.time() - started, 4)
            verdicts.append({**found, "host": check["host"], "started": started, "seconds": spent, "schema": VERDICT_SCHEMA})
    return verdicts


def main(arguments: list[str]) -> None:
    """Print facts, and verdicts where expectations were given, as one JSON object on one line."""
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
        answer["verdicts"] = judge(facts, options["check"])
    facts["clock"]["done_at"] = time.time()
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    # A look-up that still hangs must not hold up the end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
