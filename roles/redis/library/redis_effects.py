#!/usr/bin/python
"""Verify a Redis server: access, durability, free space, backups, replication, TLS and automatic failover. It changes nothing.

The password is read on the host from a file that only root can read, and passed to redis-cli in its environment, never as an argument.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.redis_connection import AUTH_ERRORS, CALL_S, plain_clients, redis_cli
from ansible.module_utils.redis_failover_checks import check_failover, make_ask
from ansible.module_utils.unit_properties import unit_properties
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# How long a replica may take to catch up after a start.
SYNC_S = 60.0
# Part of the memory limit above which the check `memory` fails.
MAX_MEMORY_SHARE = 0.9
DATA = Path("/var/lib/redis")
OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
APPLY = "primus-bootstrap apply hosts.yaml --phase storage"
# A mount pod reads the Secret's password at its start and keeps it. A restarted pod gets a new mount pod with the new password:
# https://juicefs.com/docs/csi/guide/pv/ (volume credentials), 2026-07.
FIX_PODS = (
    "the old password stays valid, because mounts in pods use it. Restart every pod with a volume of juicefs_csi, until"
    " `kubectl get pods -A -l app.kubernetes.io/name=juicefs-mount` shows none from before the change; then run"
    " `secrets rotate redis --interrupt` (plain Ansible: -e secret=redis -e rotate_interrupt=true) to remove it."
    " A restart of Redis removes it at once"
)
NO_ANSWER = "Redis did not answer"


class Server:
    """The server as a local client sees it. `call` runs redis-cli with a password and returns its output."""

    def __init__(self, host: str, call: Callable[[str, Sequence[str]], str], password: str) -> None:
        """Store the parameters; `verdicts` collects the results."""
        self.call = call
        self.password = password
        self.verdicts = Verdicts("redis", host)

    def command(self, *words: str) -> str:
        """Return the answer to a command, sent with the right password."""
        return self.call(self.password, words)

    def info(self, section: str) -> dict[str, str]:
        """Return one section of INFO as names and values."""
        lines = (line.partition(":") for line in self.command("INFO", section).splitlines())
        return {name: value.strip() for name, colon, value in lines if colon}

    def compare(self, check: str, *, expected: str, found: str, fix: str) -> None:
        """Add `pass` if both are equal, `fail` if they differ, `unknown` if `found` is empty."""
        verdict = "pass" if found == expected else "fail" if found else "unknown"
        self.verdicts.add(check, verdict, expected=expected, found=found, reason="" if found else NO_ANSWER, fix=fix)


def check_access(server: Server) -> None:
    """Check that the right password is accepted, and that a wrong one and none are rejected."""
    server.compare("answers", expected="PONG", found=server.command("PING").strip()[:200], fix="see `journalctl -u redis-server -n 30`")
    for check, password in (("refuses_wrong_password", f"not-{server.password}"), ("refuses_no_password", "")):
        answer = server.call(password, ["PING"])
        refused = any(word in answer for word in AUTH_ERRORS)
        verdict = "pass" if refused else "fail" if "PONG" in answer else "unknown"
        found = "refused" if refused else "accepted" if "PONG" in answer else "no answer"
        server.verdicts.add(check, verdict, expected="refused", found=found, fix=f"`{APPLY}`: Redis does not use the configured password")


def check_passwords(server: Server, *, keep_old_password: bool) -> None:
    """Check that only one password is valid.

    The old one stays valid until every client has the new one, and with pods until an operator removes it.
    """
    hashes = re.findall(r"(?m)^[0-9a-f]{64}$", server.command("ACL", "GETUSER", "default"))
    fix = FIX_PODS if keep_old_password else f"`{APPLY}` without --limit: the old password is removed once every client has the new one"
    server.compare("one_password", expected="1", found=str(len(hashes)) if hashes else "", fix=fix)


def check_durability(server: Server) -> None:
    """Check that writes go to the append-only file, and that no key is ever evicted."""
    persistence = server.info("persistence")
    fix_setting = f"`{APPLY}`; find out who changed it with CONFIG SET"
    server.compare("append_only_file", expected="1", found=persistence.get("aof_enabled", ""), fix=fix_setting)
    fix_disk = "see the free space, `df -h /var/lib/redis`"
    server.compare("append_only_file.writes", expected="ok", found=persistence.get("aof_last_write_status", ""), fix=fix_disk)
    for check, name in (("append_only_file.rewrite", "aof_last_bgrewrite_status"), ("snapshot", "rdb_last_bgsave_status")):
        fix = f"{fix_disk}, and the memory, `journalctl -u redis-server -n 30`; Redis refuses writes while a snapshot fails"
        server.compare(check, expected="ok", found=persistence.get(name, ""), fix=fix)
    policy = server.command("CONFIG", "GET", "maxmemory-policy").split()
    server.compare("noeviction", expected="noeviction", found=policy[-1] if policy else "", fix=fix_setting)


def check_free_space(server: Server, data: Path = DATA) -> None:
    """Check that memory is left, and enough disk space for the next rewrite of the append-only file, which makes one more copy of it."""
    memory = server.info("memory")
    used, limit = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0)) or int(memory.get("total_system_memory", 0))
    found = f"{100 * used // limit} %" if used and limit else ""
    verdict = "unknown" if not found else "pass" if used <= limit * MAX_MEMORY_SHARE else "fail"
    fix = "raise redis_maxmemory_mib, or give the host more memory: at the limit, writes are refused (`OOM command not allowed`)"
    reason = "" if found else NO_ANSWER
    server.verdicts.add("memory", verdict, expected=f"<= {100 * MAX_MEMORY_SHARE:.0f} %", found=found, reason=reason, fix=fix)
    try:
        needed = sum(path.stat().st_size for path in [*data.glob("appendonlydir/*"), *data.glob("appendonly.aof")])
        free = shutil.disk_usage(data).free
    except OSError as error:
        server.verdicts.add("disk", "unknown", expected="", found="", reason=str(error), fix=f"see `ls -l {data}`")
        return
    facts = {"expected": f">= {needed >> 20} MiB free", "found": f"{free >> 20} MiB free"}
    server.verdicts.add(
        "disk", "pass" if free >= needed else "fail", **facts, fix=f"free space below {data}: a rewrite needs a second copy"
    )


def check_backup(server: Server, state: Mapping[str, str], newest: str) -> None:
    """Check that the last backup succeeded. Before the first one is due, the check is skipped."""
    facts = {"expected": "success, and a backup", "found": f"{state.get('Result', '')}, {newest or 'none'}"}
    fix = "see `journalctl -u primus-redis-backup -n 30`; `systemctl start primus-redis-backup` makes a backup now"
    if state.get("Result", "success") != "success":
        server.verdicts.add("backup", "fail", **facts, reason=f"the last backup ended with {state['Result']}", fix=fix)
    elif newest:
        server.verdicts.add("backup", "pass", **facts)
    else:
        not_due = "Result" in state and state.get("ExecMainExitTimestampMonotonic") == "0"
        reason = "no backup was due yet" if not_due else "there is no backup, and systemd does not report why"
        server.verdicts.add("backup", "skipped" if not_due else "unknown", **facts, reason=reason, fix=fix)


def check_replication(server: Server, primary_address: str, replica_count: int, wait: Callable[[float], None]) -> None:
    """Check that a replica is connected, or that a primary has its replicas in sync. Wait up to SYNC_S for it."""
    if not primary_address and not replica_count:
        server.verdicts.add("replication", "skipped", expected="", found="", reason="the group redis has one host", fix="")
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


def check_plain_port(server: Server, *, tls: bool, users: Callable[[str], list[str]]) -> None:
    """Check that the port without TLS is closed. If clients from an earlier release use it, name them."""
    port = (server.command("CONFIG", "GET", "port").split() or [""])[-1]
    if not tls:
        server.verdicts.add("plain_port", "skipped", expected="", found=port, reason="redis_tls is false: nothing is encrypted", fix="")
        return
    if not port.isdecimal():
        server.verdicts.add(
            "plain_port", "unknown", expected="closed", found="", reason=NO_ANSWER, fix="see the verdict of `redis.answers`"
        )
        return
    try:
        clients = users(port) if port != "0" else []
    except OSError as error:
        clients = [f"unknown ({error})"]
    found = "closed" if port == "0" else f"{port} open, used by {', '.join(clients) or 'no client now'}"
    fix = f"when the jobs on these hosts are over: `{APPLY}` with all clients; a pod's mount ends when its pod is restarted"
    server.verdicts.add("plain_port", "pass" if port == "0" else "fail", expected="closed", found=found, fix=fix)


def check_certificate(server: Server, ends: Callable[[], float], least_days: int, now: float) -> None:
    """Check that a client that trusts the configured authority accepts the certificate, and that it is valid for long enough."""
    expected = f"accepted, >= {least_days} days left"
    fix = f"`{APPLY}` renews a certificate of the cluster's authority; replace your own certificate in redis_tls_cert_file"
    try:
        days = int((ends() - now) // 86400)
    except ssl.SSLError as error:
        server.verdicts.add("certificate", "fail", expected=expected, found="refused", reason=str(error), fix=fix)
        return
    except OSError as error:
        server.verdicts.add(
            "certificate", "unknown", expected=expected, found="", reason=str(error), fix="see the verdict of `redis.answers`"
        )
        return
    server.verdicts.add(
        "certificate", "pass" if days >= least_days else "fail", expected=expected, found=f"accepted, {days} days left", fix=fix
    )


def check_host(server: Server, timer: str, path: str = OVERCOMMIT) -> None:
    """Check that the backup timer runs, and that the kernel allows the fork that a backup needs."""
    server.compare("backup_timer", expected="active", found=timer, fix=f"`{APPLY}`: primus-redis-backup.timer does not run")
    try:
        found = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        found = ""
    fix = "sysctl -w vm.overcommit_memory=1: otherwise backups fail once Redis uses half of the memory"
    if found != "1" and not os.access(path, os.W_OK):
        reason = "root cannot set it on this host (a container shares the kernel of its machine)"
        server.verdicts.add("overcommit_memory", "skipped", expected="1", found=found, reason=reason, fix=fix)
        return
    server.compare("overcommit_memory", expected="1", found=found, fix=fix)


def make_call(port: int, ca_file: str) -> Callable[[str, Sequence[str]], str]:
    """Return a function that runs redis-cli against the local server."""
    options = [*(["--tls", "--cacert", ca_file] if ca_file else []), "-p", str(port)]
    return lambda password, words: redis_cli([options], password, words)


def certificate_ends(port: int, ca_file: str) -> float:
    """Return when the certificate of the server expires, in seconds since 1970.

    Raises:
        ssl.SSLError: The authority did not sign it, or it does not contain 127.0.0.1.
        OSError: The server does not answer.
    """
    context = ssl.create_default_context(cafile=ca_file)
    # Python 3.13 requires extensions that Redis and JuiceFS do not require.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    plain = socket.create_connection(("127.0.0.1", port), timeout=CALL_S)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
        certificate = tls.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def newest_backup(folder: str) -> str:
    """Return the name of the newest backup; empty if there is none."""
    return max((path.name for path in Path(folder).glob("dump-*.rdb")), default="")


def read_password(path: str) -> str:
    """Return the password in the environment file."""
    return Path(path).read_text(encoding="utf-8").strip().partition("=")[2]


def check_sentinels(server: Server, sentinel: Mapping[str, Any], ca_file: str) -> None:
    """Check that the sentinels of the group can replace its primary."""
    tls = ["--tls", "--cacert", ca_file] if ca_file else []
    check_failover(server.verdicts, sentinel, make_ask(sentinel["port"], tls, {sentinel["account"]: server.password}), server.command)


def main() -> None:
    """Run all checks and report the verdicts."""
    text = {"type": "str", "required": True}
    sentinel = {
        **dict.fromkeys(("address", "name", "account"), text),
        "addresses": {"type": "list", "elements": "str", "required": True},
        "leaving": {"type": "str", "default": ""},
        "port": {"type": "int", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "ca_file": {"type": "str", "required": True},
            "env_file": {"type": "path", "required": True},
            "primary_address": {"type": "str", "required": True},
            "replica_count": {"type": "int", "required": True},
            "backup_dir": {"type": "path", "required": True},
            "keep_old_password": {"type": "bool", "default": False},
            "least_days": {"type": "int", "default": 30},
            "sentinel": {"type": "dict", "options": sentinel},  # of a group that fails over automatically
        },
        supports_check_mode=True,
    )
    params: Mapping[str, Any] = module.params
    if not Path(params["env_file"]).exists():
        module.fail_json(msg=f"{params['env_file']} is missing: Redis is not set up on this host. Fix: {APPLY}")
    server = Server(params["host"], make_call(params["port"], params["ca_file"]), read_password(params["env_file"]))
    check_access(server)
    check_passwords(server, keep_old_password=params["keep_old_password"])
    check_durability(server)
    check_free_space(server)
    last_backup = unit_properties("primus-redis-backup.service", "Result", "ExecMainExitTimestampMonotonic")
    check_backup(server, last_backup, newest_backup(params["backup_dir"]))
    check_replication(server, params["primary_address"], params["replica_count"], time.sleep)
    check_host(server, unit_properties("primus-redis-backup.timer", "ActiveState").get("ActiveState", ""))
    check_plain_port(server, tls=bool(params["ca_file"]), users=plain_clients)
    if params["ca_file"]:
        check_certificate(server, lambda: certificate_ends(params["port"], params["ca_file"]), params["least_days"], time.time())
    if params["sentinel"]:
        check_sentinels(server, params["sentinel"], params["ca_file"])
    server.verdicts.finish(module)


if __name__ == "__main__":
    main()
