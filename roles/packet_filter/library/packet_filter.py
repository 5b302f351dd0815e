#!/usr/bin/python
"""Ansible module `packet_filter`: load the rules of the table `inet primus` so that a mistake cannot lock the controller out.

`loaded` checks and loads the rules, and starts a timer that brings the previous ones back. `confirmed` stops the timer and writes the
file that the unit loads at boot. No collection has a module with such a rollback.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.host_files import replace_file

NFT = "/usr/sbin/nft"
TABLE = ("inet", "primus")
ROLLBACK = "primus-packet-filter-rollback"
PREVIOUS = Path("/run/primus-packet-filter-previous.nft")
CALL_S = 60.0
# Replaces the table whether it exists or not.
EMPTY = "table inet primus\ndelete table inet primus\n"


class CommandError(Exception):
    """A command failed; the text has its error."""


def run(*argv: str, stdin: str = "") -> tuple[int, str]:
    """Return the exit code of a command and its output, or its error.

    Raises:
        CommandError: It cannot be started, or does not end.
    """
    try:
        done = run_command(argv, stdin=stdin, timeout_s=CALL_S)
    except OSError as error:
        raise CommandError(str(error)) from error
    return done.code, done.stdout if done.code == 0 else done.last_words(6)


def must(*argv: str, stdin: str = "") -> str:
    """Return the output of a command.

    Raises:
        CommandError: It failed.
    """
    code, output = run(*argv, stdin=stdin)
    if code:
        raise CommandError(f"`{' '.join(argv)}` failed: {output}")
    return output


def loaded_table() -> str:
    """Return the rules that are in effect; empty if there are none.

    Raises:
        CommandError: The kernel does not tell.
    """
    code, output = run(NFT, "--stateless", "list", "table", *TABLE)
    if code and "No such file or directory" not in output:
        raise CommandError(f"nft does not list its rules: {output}")
    return "" if code else output


def checked(rules: str) -> str:
    """Return the rules as nft lists them, from a network namespace that has nothing else.

    Raises:
        CommandError: nft does not accept them.
    """
    script = f"{NFT} -f - && {NFT} --stateless list table {' '.join(TABLE)}"
    code, output = run("unshare", "--net", "/bin/sh", "-c", script, stdin=rules)
    if code:
        raise CommandError(f"nft does not accept the rules: {output}")
    return output


def rollback_is_due() -> bool:
    """Return whether a timer waits to bring the previous rules back."""
    return run("systemctl", "is-active", "--quiet", f"{ROLLBACK}.timer")[0] == 0


def text_of(path: Path) -> str:
    """Return a file; empty if it does not exist."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def difference(path: Path, rules: str) -> str:
    """Return why the host does not have these rules; empty if it has them."""
    if rollback_is_due():
        return "an earlier run has loaded rules and not confirmed them"
    if text_of(path) != rules:
        return f"{path} has other rules"
    return "" if loaded_table() == checked(rules) else f"the loaded table is not that of {path}"


def load(rules: str, rollback_s: int) -> None:
    """Load the rules, after starting the timer that brings the previous ones back."""
    checked(rules)
    if rollback_is_due():
        # What an interrupted run has replaced stays the previous state.
        must("systemctl", "stop", f"{ROLLBACK}.timer")
    else:
        replace_file(PREVIOUS, EMPTY + loaded_table(), mode=0o600)
    settings = (f"--unit={ROLLBACK}", f"--on-active={rollback_s}s", "--timer-property=AccuracySec=1s", "--collect", "--quiet")
    must("systemd-run", *settings, NFT, "-f", str(PREVIOUS))
    try:
        must(NFT, "-f", "-", stdin=rules)
    except CommandError:
        must("systemctl", "stop", f"{ROLLBACK}.timer")
        raise


def confirm(path: Path, rules: str, rollback_s: int) -> str:
    """Stop the timer and write the file for the next boot; return the error if the previous rules are back already."""
    if rollback_is_due():
        must("systemctl", "stop", f"{ROLLBACK}.timer")
    if loaded_table() != checked(rules):
        fix = f"set packet_filter_rollback_s to more than {rollback_s}, and apply again"
        return f"the controller did not connect within {rollback_s} s, and the previous rules are back. Fix: {fix}"
    replace_file(path, rules, mode=0o600)
    return ""


def main() -> None:
    """Run as an Ansible module."""
    arguments: dict[str, Any] = {
        "state": {"choices": ["loaded", "confirmed"], "required": True},
        "rules": {"type": "str", "required": True},
        "path": {"type": "path", "required": True},
        "rollback_s": {"type": "int", "default": 300},
    }
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    path, rules, rollback_s = Path(module.params["path"]), module.params["rules"], module.params["rollback_s"]
    try:
        before, reason = text_of(path), difference(path, rules)
        error = ""
        if reason and not module.check_mode:
            if module.params["state"] == "loaded":
                load(rules, rollback_s)
            else:
                error = confirm(path, rules, rollback_s)
    except (CommandError, OSError) as problem:
        module.fail_json(msg=f"{problem}. Fix: correct what this names, then apply the phase baseline again")
    if error:
        module.fail_json(msg=error)
    names = {"before_header": str(path), "after_header": str(path)}
    module.exit_json(changed=bool(reason), reason=reason, diff={"before": before, "after": rules, **names})


if __name__ == "__main__":
    main()
