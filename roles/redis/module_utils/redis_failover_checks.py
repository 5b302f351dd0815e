# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Verify that the sentinels of a group of Redis hosts can replace its primary. It changes nothing.

No collection has a module for Sentinel.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.redis_connection import redis_cli

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible.module_utils.verdict_records import Verdicts

    # Sends a command to the sentinel at an address, as an account (empty: without a password), and returns the answer.
    Ask = Callable[[str, str, Sequence[str]], str]

# How long sentinels may take to find each other after a start. They announce themselves every two seconds:
# https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/ (Sentinels and replicas auto discovery).
DISCOVERY_S = 60.0
JOURNAL = "see `journalctl -u primus-redis-sentinel -n 30`"


def check_quorum(verdicts: Verdicts, ask: Callable[[], str], hosts: int, wait: Callable[[float], None], leaving: int = 0) -> None:
    """Check that all sentinels of the group know each other, and that enough of them are there for a failover. Wait up to DISCOVERY_S.

    `leaving` hosts, in addition to `hosts`, are being replaced: their sentinels may run or not.
    """
    valid = tuple(f"OK {count} usable Sentinels" for count in range(hosts, hosts + leaving + 1))
    expected = valid[0]
    deadline = time.monotonic() + DISCOVERY_S
    while not (answer := ask()).startswith(valid) and time.monotonic() < deadline:
        wait(1.0)
    found = answer.partition(".")[0][:200]
    fix = f"{JOURNAL} on the hosts of the group redis; the port of Sentinel must be open between them"
    verdict = "pass" if found.startswith(valid) else "fail" if found else "unknown"
    verdicts.add("failover.quorum", verdict, expected=expected, found=found, reason="" if found else "Sentinel did not answer", fix=fix)


def check_agreement(verdicts: Verdicts, answers: dict[str, str]) -> None:
    """Check that every sentinel that answers names the same primary. `answers` has what each said, by its address; empty = nothing."""
    found = sorted({answer for answer in answers.values() if answer})
    silent = sorted(address for address, answer in answers.items() if not answer)
    fix = f"wait for a failover to end, and verify again; otherwise {JOURNAL} on each host of the group redis"
    facts = {"expected": "one primary", "found": ", ".join(found), "fix": fix}
    if len(found) > 1:
        verdicts.add("failover.one_primary", "fail", **facts, reason="the sentinels name different primaries")
    elif silent:
        verdicts.add("failover.one_primary", "unknown", **facts, reason=f"no answer from the sentinel of {', '.join(silent)}")
    else:
        verdicts.add("failover.one_primary", "pass", **facts)


def check_role(verdicts: Verdicts, own: str, primary: str, role: str) -> None:
    """Check that this host's Redis has the role that the sentinels know: the primary is one, and every other host follows it."""
    expected = "primary" if own == primary else f"replica of {primary}"
    verdict = "unknown" if not role or not primary else "pass" if role == expected else "fail"
    fix = f"wait half a minute and verify again: the sentinels correct it; otherwise {JOURNAL}"
    reason = "" if verdict != "unknown" else "Redis or the sentinels did not answer"
    verdicts.add("failover.role", verdict, expected=expected, found=role, reason=reason, fix=fix)


def check_access(verdicts: Verdicts, answer: str) -> None:
    """Check that Sentinel refuses commands without a password. `answer` is that to one that clients do not need."""
    found = "refused" if "NOPERM" in answer else "accepted" if answer else ""
    fix = "primus-bootstrap apply hosts.yaml --phase storage"
    verdict = {"refused": "pass", "accepted": "fail", "": "unknown"}[found]
    verdicts.add("failover.refuses_no_password", verdict, expected="refused", found=found, reason="" if found else "no answer", fix=fix)


def check_acknowledgement(verdicts: Verdicts, replicas: str, hosts: int) -> None:
    """Check that the primary refuses writes while it and its replicas are no majority of the hosts."""
    expected = str(hosts // 2)
    verdict = "pass" if replicas == expected else "fail" if replicas else "unknown"
    fix = "primus-bootstrap apply hosts.yaml --phase storage; find out who changed min-replicas-to-write with CONFIG SET"
    reason = "" if replicas else "Redis did not answer"
    verdicts.add("failover.needs_replica", verdict, expected=expected, found=replicas, reason=reason, fix=fix)


def parse_role(info: str) -> str:
    """Return `primary` or `replica of ADDRESS` from INFO replication; empty if it has no role."""
    lines = {name: value.strip() for name, colon, value in (line.partition(":") for line in info.splitlines()) if colon}
    if lines.get("role") == "slave":
        return f"replica of {lines.get('master_host', '')}"
    return "primary" if lines.get("role") == "master" else ""


def make_ask(port: int, tls: Sequence[str], passwords: dict[str, str]) -> Ask:
    """Return a function that runs redis-cli against the sentinel at an address."""

    def ask(address: str, account: str, words: Sequence[str]) -> str:
        user = ["--user", account] if account else []
        answer: str = redis_cli([["-h", address, "-p", str(port), *tls, *user]], passwords.get(account, ""), words)
        return answer

    return ask


def check_failover(verdicts: Verdicts, sentinel: Mapping[str, Any], ask: Ask, redis: Callable[..., str]) -> None:
    """Check the sentinels of the group.

    Args:
        verdicts: Gets the records.
        sentinel: The option `sentinel` of the module redis_effects.
        ask: Sends a command to a sentinel.
        redis: Sends a command to this host's Redis.
    """
    name, own, account = sentinel["name"], sentinel["address"], sentinel["account"]
    group: list[str] = sentinel["addresses"]
    staying = [address for address in group if address != sentinel["leaving"]]
    ckquorum = ["SENTINEL", "CKQUORUM", name]
    check_quorum(verdicts, lambda: ask(own, account, ckquorum), len(staying), time.sleep, len(group) - len(staying))
    question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]
    answers = {address: ask(address, "", question).partition("\n")[0].strip() for address in staying}
    check_agreement(verdicts, answers)
    check_role(verdicts, own, answers.get(own, ""), parse_role(redis("INFO", "replication")))
    check_access(verdicts, ask(own, "", ckquorum))
    check_acknowledgement(verdicts, (redis("CONFIG", "GET", "min-replicas-to-write").split() or [""])[-1], len(group))
