"""The fixes for common error messages of ssh, sudo, apt and the kernel. A fix in the role's own message takes precedence."""

from __future__ import annotations

import re

# Pattern -> fix. The first match wins; {host}, {address} and {known_hosts} are filled in.
_KNOWN: tuple[tuple[str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "if {host} was reinstalled: ssh-keygen -f {known_hosts} -R '{address}', then apply; if not: find the machine at its address",
    ),
    (
        r"Host key verification failed|REVOKED HOST KEY",
        "no host key of {host} is pinned, because it did not answer the first contact: apply again, or set host_key in hosts.yaml",
    ),
    (
        r"Permission denied \(|Too many authentication failures",
        "check ansible_user and ansible_ssh_private_key_file of {host}, and that its authorized_keys file contains the public key",
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
        "set ansible_host of {host} to its address, or correct the name resolution of this machine",
    ),
    (r"Connection refused", "start sshd on {host}, or set ansible_port if it listens elsewhere"),
    (
        r"timed out|No route to host|Network is unreachable|Connection closed|Connection reset|Broken pipe|connection broke",
        (
            "check that {host} is up and reachable, then apply again; "
            "if it will not come back: primus-bootstrap node remove hosts.yaml {host} --dead"
        ),
    ),
    (
        r"Missing sudo password|a password is required|a terminal is required",
        "allow the account on {host} to use sudo without a password, or apply with --ask-become-pass",
    ),
    (
        r"Incorrect sudo password|Sorry, try again",
        "the sudo password is wrong for {host}: apply again with --ask-become-pass",
    ),
    (
        r"not in the sudoers file|is not allowed to (execute|run)|may not run sudo",
        "allow the account on {host} to become root with sudo, or set ansible_user to an account that is allowed to",
    ),
    (r"No space left on device|not enough free space", "free space on {host} (`df -h` shows the full file system), then apply again"),
    (r"Read-only file system", "a file system of {host} is read-only: look for disk errors in its kernel log (`dmesg`)"),
    (
        r"python3?: (command )?not found|interpreter .{0,80}not found|No such file or directory.{0,40}python",
        "install python3 on {host}, or set ansible_python_interpreter",
    ),
    (
        r"Could not get lock|dpkg frontend lock|is another process using it|Failed to lock apt",
        "another package installation is running on {host}: wait for it to end, then apply again",
    ),
    (
        r"Unable to locate package|No package matching|has no installation candidate",
        "the package sources of {host} do not contain the package: check its mirror and its release",
    ),
    (
        r"Failed to fetch|Temporary failure resolving|Could not connect to .{0,80}:(80|443)",
        "{host} cannot reach its package mirror: check its proxy and mirror settings",
    ),
    (r"Decryption failed|no vault secrets", "give the Vault password: --ask-vault-pass or --vault-password-file"),
)


def known_fix(cause: str, *, host: str, address: str, known_hosts: str) -> str:
    """Return the fix for an error message of a host, or an empty string if the table has none."""
    for pattern, fix in _KNOWN:
        if re.search(pattern, cause, re.IGNORECASE | re.DOTALL):
            return fix.format(host=host, address=address, known_hosts=known_hosts)
    return ""
