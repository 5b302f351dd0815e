"""The cause and the fix of a failed Ansible result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.engine.causes import MESSAGE_CHARS, Cause, cause_of
from primus_bootstrap.engine.fixes import known_fix

EVENTS = Path(__file__).parents[1] / "data" / "events"


def recorded(name: str, task: str, kind: str = "runner_on_failed") -> dict[str, Any]:
    """Return the first recorded result of a task."""
    events = json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))
    result: dict[str, Any] = next(e["event_data"]["res"] for e in events if e["event"] == kind and e["event_data"]["task"] == task)
    return result


def test_failed_fact_gathering_has_the_error_of_the_interpreter() -> None:
    """The cause is two levels down, in `failed_modules.*.module_stderr`."""
    assert cause_of(recorded("facts", "Gathering Facts")) == Cause("libz.so.1: cannot open shared object file")


def test_the_fix_is_separated_from_the_message_of_a_role() -> None:
    """`Fix:` splits a fail_msg into cause and fix."""
    assert cause_of(recorded("results", "Refuse")) == Cause("kernel 5.4 is older than 5.15.", "install a newer kernel and reboot.")


def test_several_problems_in_one_message_are_separated() -> None:
    """A message with two problems has two causes and two fixes."""
    message = "disk: 1 GiB is free. Fix: make room.\nos: alpine is not supported. Fix: install Debian."

    assert cause_of({"msg": message}) == Cause("disk: 1 GiB is free.\nos: alpine is not supported.", "make room; install Debian")


def test_a_loop_names_the_item_that_failed() -> None:
    """`One or more items failed` contains no cause; the first failed item does."""
    assert cause_of(recorded("results", "Loop and fail once")).text == "bad: non-zero return code (exit code 1)"
    result = {"msg": "One or more items failed", "results": [{"item": "vim"}, {"item": "git", "failed": True, "msg": "no such package"}]}
    assert cause_of(result).text == "git: no such package"
    item = {"_ansible_item_label": "The disk is full", "failed": True, "msg": "The disk is full: 1 MiB left. Fix: make room."}
    result = {"results": [item]}
    assert cause_of(result) == Cause("The disk is full: 1 MiB left.", "make room.")


def test_an_unreachable_host_has_the_error_message_of_ssh() -> None:
    """Ansible's introduction is removed."""
    assert cause_of(recorded("unreachable", "Answer", "runner_on_unreachable")).text.startswith("ssh: connect to host 127.0.0.1 port ")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"msg": "non-zero return code", "rc": 2, "stderr": "cp: cannot stat 'x'"}, "cp: cannot stat 'x'"),
        ({"msg": "non-zero return code", "rc": 2, "stderr": "", "stdout": "usage: tool"}, "usage: tool"),
        ({"msg": "non-zero return code", "rc": 2}, "non-zero return code (exit code 2)"),
        (
            {"msg": "MODULE FAILURE", "module_stderr": "Traceback (most recent call last):\n  x\nOSError: [Errno 28] full"},
            "OSError: [Errno 28] full",
        ),
        ({"msg": ["a", "b"]}, "a\nb"),
        ({}, "the task failed without a message"),
        ({"censored": "hidden", "msg": "secret"}, "hidden: the task sets no_log"),
        ({"msg": "x" * 5000}, "x" * (MESSAGE_CHARS - 1) + "…"),
    ],
)
def test_the_most_specific_part_of_a_result_is_the_cause(result: dict[str, Any], text: str) -> None:
    """A message without a cause is replaced by stderr, then stdout; long texts are cut; a no_log result has no cause."""
    assert cause_of(result).text == text


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        (
            "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.",
            "ssh-keygen -f /s/known_hosts -R '[10.0.0.1]:2222'",
        ),
        ("No ED25519 host key is known for 10.0.0.1\nHost key verification failed.", "did not answer the first contact"),
        ("a@10.0.0.1: Permission denied (publickey).", "ansible_ssh_private_key_file of n1"),
        ("ssh: Could not resolve hostname n1: Name or service not known", "set ansible_host of n1"),
        ("ssh: connect to host n1 port 22: Connection timed out", "check that n1 is up"),
        ("Missing sudo password", "--ask-become-pass"),
        ("primus is not in the sudoers file.", "become root with sudo"),
        ("[Errno 28] No space left on device: b'/x'", "free space on n1"),
        ("/bin/sh: 1: /usr/bin/python3: not found", "install python3 on n1"),
        ("Could not get lock /var/lib/dpkg/lock-frontend", "wait for it to end"),
        ("E: Unable to locate package rocm", "check its mirror"),
    ],
)
def test_common_causes_have_a_fix(cause: str, fix: str) -> None:
    """The fix contains the name of the host."""
    assert fix in known_fix(cause, host="n1", address="[10.0.0.1]:2222", known_hosts="/s/known_hosts")


def test_an_unknown_cause_has_no_fix() -> None:
    """The table does not guess."""
    assert known_fix("the moon is full", host="n1", address="a", known_hosts="k") == ""
