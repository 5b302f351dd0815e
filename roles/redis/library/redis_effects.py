#!/usr/bin/python
"""Ask a Redis server what it answers, refuses, persists and replicates: the Ansible module `redis_effects`, which changes nothing.

The password is read on the host from a file that only root can read, and goes to redis-cli through the environment, never as an argument.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SCHEMA = "primus.verdict/1"
SOURCE = "roles/redis/meta/argument_specs.yml"
# How long a replica may take to catch up after a start, and one call may take.
SYNC_S = 60.0
CALL_S = 15.0
# Part of its memory from which on Redis counts as full.
FULL = 0.9
DATA = Path("/var/lib/redis")
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
# A mount pod begins with the Secret's password and keeps it; a pod that starts anew gets a mount pod of its own with the new one:
# https://juicefs.com/docs/csi/guide/pv/ (volume credentials), 2026-07.
FORGET_PODS = (
    "the former one is kept, as pods' mounts hold it. Let every pod with a volume of juicefs_csi start anew, until `kubectl get pods -A"
    " -l app.kubernetes.io/name=juicefs-mount` shows none from before the change; then `secrets rotate redis --interrupt`"
    " (plain: -e secret=redis -e rotate_interrupt=true) forgets it. A restart of Redis forgets it at once"
)
REFUSED = ("NOAUTH", "WRONGPASS", "AUTH failed")
APPLY = "primus-bootstrap apply hosts.yaml --phase storage"


class Server:
    """The server as a local client sees it; `call` runs redis-cli with a password and returns what it printed."""

    def __init__(self, host: str, call: Callable[[str, Sequence[str]], str], password: str) -> None:
        """Keep how to call it; verdicts gather in `verdicts`."""
        self.host = host
        self.call = call
        self.password = password
        self.verdicts: list[dict[str, Any]] = []

    def ask(self, *words: str) -> str:
        """Return the answer to a command, sent with the right password."""
        return self.call(self.password, words)

    def info(self, section: str) -> dict[str, str]:
        """Return one section of INFO as names and values."""
        lines = (line.partition(":") for line in self.ask("INFO", section).splitlines())
        return {name: value.strip() for name, colon, value in lines if colon}

    def judge(self, check: str, verdict: str, *, expected: str, found: str, reason: str = "", fix: str = "") -> None:  # noqa: PLR0913 (the record's fields)
        """Record one verdict."""
        record = {"check": f"redis.{check}", "host": self.host, "verdict": verdict, "expected": expected, "found": found}
        bad = {} if verdict == "pass" else {"reason": reason or f"expected {expected}, found {found}", "fix": fix}
        self.verdicts.append({**record, **bad, "source": SOURCE, "started": time.time(), "seconds": 0.0, "schema": SCHEMA})

    def compare(self, check: str, *, expected: str, found: str, fix: str) -> None:
        """Pass where both are equal, fail where they differ, unknown where nothing was found."""
        verdict = "pass" if found == expected else "fail" if found else "unknown"
        self.judge(check, verdict, expected=expected, found=found, reason="" if found else "Redis did not say", fix=fix)


def look_at_access(server: Server) -> None:
    """See that the right password is taken, and that a wrong one and none are refused."""
    server.compare("answers", expected="PONG", found=server.ask("PING").strip()[:200], fix="see `journalctl -u redis-server -n 30`")
    for check, password in (("refuses_wrong_password", f"not-{server.password}"), ("refuses_no_password", "")):
        answer = server.call(password, ["PING"])
        refused = any(word in answer for word in REFUSED)
        verdict = "pass" if refused else "fail" if "PONG" in answer else "unknown"
        found = "refused" if refused else "let in" if "PONG" in answer else "no answer"
        server.judge(check, verdict, expected="refused", found=found, fix="apply the phase storage again: the password is not in force")


def look_at_passwords(server: Server, *, keep_former: bool) -> None:
    """See that one password is taken: a former one goes when every client was given the new one, and with pods when that is said."""
    hashes = re.findall(r"(?m)^[0-9a-f]{64}$", server.ask("ACL", "GETUSER", "default"))
    fix = (
        FORGET_PODS
        if keep_former
        else "apply the phase storage on all hosts: the former one is forgotten once every client has the new one"
    )
    server.compare("one_password", expected="1", found=str(len(hashes)) if hashes else "", fix=fix)


def look_at_durability(server: Server) -> None:
    """See that writes go to the append-only file, and that nothing is ever evicted."""
    persistence = server.info("persistence")
    again = "apply the phase storage again, and look who changes settings with CONFIG SET"
    server.compare("append_only_file", expected="1", found=persistence.get("aof_enabled", ""), fix=again)
    full = "look at the disk of /var/lib/redis: `df -h /var/lib/redis`"
    server.compare("append_only_file.writes", expected="ok", found=persistence.get("aof_last_write_status", ""), fix=full)
    for check, name in (("append_only_file.rewrite", "aof_last_bgrewrite_status"), ("snapshot", "rdb_last_bgsave_status")):
        fix = f"{full}, and at its memory: `journalctl -u redis-server -n 30`; Redis refuses writes while a snapshot fails"
        server.compare(check, expected="ok", found=persistence.get(name, ""), fix=fix)
    policy = server.ask("CONFIG", "GET", "maxmemory-policy").split()
    server.compare("noeviction", expected="noeviction", found=policy[-1] if policy else "", fix=again)


def look_at_room(server: Server, data: Path = DATA) -> None:
    """See that memory is left, and room on the disk for the next rewrite of the append-only file, which is one more copy of it."""
    memory = server.info("memory")
    used, bound = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0)) or int(memory.get("total_system_memory", 0))
    found = f"{100 * used // bound} %" if used and bound else ""
    verdict = "unknown" if not found else "pass" if used <= bound * FULL else "fail"
    fix = "raise redis_maxmemory_mib, or give the host more memory: once it is full, writes are refused (`OOM command not allowed`)"
    server.judge("memory", verdict, expected=f"<= {100 * FULL:.0f} %", found=found, reason="" if found else "Redis did not say", fix=fix)
    try:
        taken = sum(path.stat().st_size for path in [*data.glob("appendonlydir/*"), *data.glob("appendonly.aof")])
        free = shutil.disk_usage(data).free
    except OSError as error:
        server.judge("disk", "unknown", expected="", found="", reason=str(error), fix=f"see `ls -l {data}`")
        return
    words = {"expected": f">= {taken >> 20} MiB free", "found": f"{free >> 20} MiB free"}
    server.judge("disk", "pass" if free >= taken else "fail", **words, fix=f"free space below {data}: a rewrite needs as much again")


def look_at_backup(server: Server, shown: str, newest: str) -> None:
    """See that the last backup went well; before the first one is due there is nothing to see."""
    state = dict(line.partition("=")[::2] for line in shown.splitlines())
    words = {"expected": "success, and a backup", "found": f"{state.get('Result', '')}, {newest or 'none'}"}
    fix = "see `journalctl -u primus-redis-backup -n 30`; `systemctl start primus-redis-backup` takes one now"
    if state.get("Result", "success") != "success":
        server.judge("backup", "fail", **words, reason=f"the last backup ended with {state['Result']}", fix=fix)
    elif newest:
        server.judge("backup", "pass", **words)
    else:
        known = "Result" in state and state.get("ExecMainExitTimestampMonotonic") == "0"
        reason = "none was due yet" if known else "there is no backup, and nothing says why"
        server.judge("backup", "skipped" if known else "unknown", **words, reason=reason, fix=fix)


def look_at_replication(server: Server, primary_address: str, replica_count: int, wait: Callable[[float], None]) -> None:
    """See that a replica has its link, or that a primary has its replicas in sync; a fresh one is waited for."""
    if not primary_address and not replica_count:
        server.judge("replication", "skipped", expected="", found="", reason="the group redis has one host", fix="")
        return
    expected = "up" if primary_address else f"{replica_count} online"
    found = ""
    deadline = time.monotonic() + SYNC_S
    while True:
        info = server.info("replication")
        online = sum("state=online" in value for name, value in info.items() if name.startswith("slave"))
        found = info.get("master_link_status", "not a replica") if primary_address else f"{online} online"
        if not info or found == expected or time.monotonic() > deadline:
            break
        wait(1.0)
    fix = "see `INFO replication` on both hosts; the port must be open between them and the password the same"
    server.compare("replication", expected=expected, found=found if info else "", fix=fix)


def look_at_plain_port(server: Server, *, tls: bool, users: Callable[[str], list[str]]) -> None:
    """See that the port without TLS is closed; while clients of a former release use it, name them."""
    port = (server.ask("CONFIG", "GET", "port").split() or [""])[-1]
    if not tls:
        server.judge("plain_port", "skipped", expected="", found=port, reason="redis_tls is false: nothing is encrypted", fix="")
        return
    if not port.isdecimal():
        server.judge("plain_port", "unknown", expected="closed", found="", reason="Redis did not say", fix="see `redis.answers`")
        return
    try:
        named = users(port) if port != "0" else []
    except OSError as error:
        named = [f"unknown ({error})"]
    found = "closed" if port == "0" else f"{port} open, used by {', '.join(named) or 'nobody now'}"
    fix = f"when the jobs on these hosts are over: `{APPLY}` with all clients; a pod's mount ends when its pod is restarted"
    server.judge("plain_port", "pass" if port == "0" else "fail", expected="closed", found=found, fix=fix)


def look_at_certificate(server: Server, ends: Callable[[], float], least_days: int, now: float) -> None:
    """See that a client that trusts the stated authority accepts the certificate, and that it does not run out soon."""
    expected = f"accepted, >= {least_days} days left"
    fix = f"`{APPLY}` renews a certificate of the cluster's authority; one of your own is replaced in redis_tls_cert_file"
    try:
        days = int((ends() - now) // 86400)
    except ssl.SSLError as error:
        server.judge("certificate", "fail", expected=expected, found="refused", reason=str(error), fix=fix)
        return
    except OSError as error:
        server.judge("certificate", "unknown", expected=expected, found="", reason=str(error), fix="see `redis.answers`")
        return
    server.judge("certificate", "pass" if days >= least_days else "fail", expected=expected, found=f"accepted, {days} days left", fix=fix)


def look_at_host(server: Server, timer: str, path: str = OVERCOMMIT) -> None:
    """See that backups are on a timer, and that a fork for them cannot fail for want of memory."""
    server.compare(
        "backup_timer", expected="active", found=timer, fix="apply the phase storage again: primus-redis-backup.timer does not run"
    )
    try:
        found = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        found = ""
    fix = "set vm.overcommit_memory to 1 on the machine: backups under a half-full memory fail without"
    if found != "1" and not os.access(path, os.W_OK):
        reason = "this host does not let root set it (a container shares the kernel of its machine)"
        server.judge("overcommit_memory", "skipped", expected="1", found=found, reason=reason, fix=fix)
        return
    server.compare("overcommit_memory", expected="1", found=found, fix=fix)


def make_call(port: int, ca_file: str) -> Callable[[str, Sequence[str]], str]:
    """Return how to run redis-cli against the local server."""
    tls = ["--tls", "--cacert", ca_file] if ca_file else []

    def call(password: str, words: Sequence[str]) -> str:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **({"REDISCLI_AUTH": password} if password else {})}
        command = ["redis-cli", "--no-auth-warning", *tls, "-h", "127.0.0.1", "-p", str(port), *words]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=CALL_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout + done.stderr

    return call


def certificate_ends(port: int, ca_file: str) -> float:
    """Return when the certificate that the server shows runs out, s since 1970.

    Raises:
        ssl.SSLError: The authority did not sign it, or it does not name 127.0.0.1.
        OSError: The server does not answer.
    """
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 asks for extensions that neither Redis nor JuiceFS asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    plain = socket.create_connection(("127.0.0.1", port), timeout=CALL_S)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
        shown = tls.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def plain_users(port: str) -> list[str]:
    """Return the addresses that have a connection to a port of this host.

    Raises:
        OSError: `ss` does not answer.
    """
    command = ["ss", "-Htn", "state", "established", f"( sport = :{port} )"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=CALL_S).stdout
    except subprocess.SubprocessError as error:
        raise OSError(f"`{' '.join(command)}` failed") from error
    rows = [line.split() for line in listing.splitlines()]
    return sorted({re.sub(r":\d+$", "", row[-1]).strip("[]") for row in rows if len(row) >= 4})


def timer_state() -> str:
    """Return what systemd says of the timer of the backups."""
    command = ["systemctl", "is-active", "primus-redis-backup.timer"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_S).stdout.strip()


def backup_state(folder: str) -> tuple[str, str]:
    """Return what systemd says of the last backup, and the name of the newest."""
    properties = "--property=Result,ExecMainExitTimestampMonotonic"
    command = ["systemctl", "show", properties, "primus-redis-backup.service"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CALL_S).stdout
    return shown, max((path.name for path in Path(folder).glob("dump-*.rdb")), default="")


def read_password(path: str) -> str:
    """Return the password of the environment file."""
    return Path(path).read_text(encoding="utf-8").strip().partition("=")[2]


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "ca_file": {"type": "str", "required": True},
            "env_file": {"type": "path", "required": True},
            "primary_address": {"type": "str", "required": True},
            "replica_count": {"type": "int", "required": True},
            "backup_dir": {"type": "path", "required": True},
            "keep_former": {"type": "bool", "default": False},
            "least_days": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    wanted: Mapping[str, Any] = module.params
    if not Path(wanted["env_file"]).exists():
        module.fail_json(msg=f"{wanted['env_file']} is missing: Redis was not set up here. Fix: apply the phase storage.")
    server = Server(wanted["host"], make_call(wanted["port"], wanted["ca_file"]), read_password(wanted["env_file"]))
    look_at_access(server)
    look_at_passwords(server, keep_former=wanted["keep_former"])
    look_at_durability(server)
    look_at_room(server)
    look_at_backup(server, *backup_state(wanted["backup_dir"]))
    look_at_replication(server, wanted["primary_address"], wanted["replica_count"], time.sleep)
    look_at_host(server, timer_state())
    look_at_plain_port(server, tls=bool(wanted["ca_file"]), users=plain_users)
    if wanted["ca_file"]:
        look_at_certificate(server, lambda: certificate_ends(wanted["port"], wanted["ca_file"]), wanted["least_days"], time.time())
    result = {"changed": False, "verdicts": server.verdicts, "stdout": json.dumps({"verdicts": server.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in server.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
