"""The environment in which a run starts Ansible: host keys always checked, no inventory but the run's snapshot, our ansible.cfg."""

from __future__ import annotations

import configparser
import os
import shlex
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.inventory.snapshot import plugin_settings

if TYPE_CHECKING:
    from pathlib import Path


def ansible_environment(known_hosts: Path, private_dir: Path) -> dict[str, str]:
    """Return the whole environment of a run's Ansible: the user's (proxies, ssh agent, ANSIBLE_FORKS, …), and ours over it.

    Args:
        known_hosts: the file that holds the cluster's pinned host keys.
        private_dir: a folder of this run alone, with a short path (a unix socket's path has at most 108 bytes).
    """
    return (
        dict(os.environ)
        | _utf8_locale()
        | {
            "ANSIBLE_CONFIG": str(content.ansible_cfg()),
            **plugin_settings(),
            # ansible-runner switches host key checking off where this is not set.
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_SSH_ARGS": shlex.join([*strict_host_keys(known_hosts), *_base_ssh_args()]),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(private_dir / "cp"),
            # Decrypted Vault files and modules lie here for a moment; the folder goes when the run ends, however it ends.
            "ANSIBLE_LOCAL_TEMP": str(private_dir / "tmp"),
            "ANSIBLE_HOST_PATTERN_MISMATCH": "ignore",
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_DEPRECATION_WARNINGS": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_STDOUT_CALLBACK": "default",
            "AWX_LIB_DIRECTORY": "",
            "ANSIBLE_NOCOWS": "1",
        }
    )


def strict_host_keys(known_hosts: Path) -> list[str]:
    """Return ssh's arguments that accept the pinned keys and no others.

    ssh takes the first value of an option, so these go before all other arguments: what the inventory adds (a bastion in
    `ansible_ssh_common_args`) still works, and cannot switch the check off.
    """
    return [*_known_hosts(known_hosts), "-o", "StrictHostKeyChecking=yes"]


def first_contact(known_hosts: Path) -> list[str]:
    """Return ssh's arguments that write a new key to `known_hosts`, in plain text."""
    return [*_known_hosts(known_hosts), "-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=no"]


def _utf8_locale() -> dict[str, str]:
    """Return what makes the locale one of UTF-8, without which Ansible does not start; nothing where it is one."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    return {} if "utf8" in locale.lower().replace("-", "") else {"LC_ALL": "C.UTF-8"}


def _known_hosts(path: Path) -> list[str]:
    quoted = str(path).replace("%", "%%")  # ssh expands % in this option, and splits it at spaces
    return ["-o", f'UserKnownHostsFile="{quoted}"', "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"]


def _base_ssh_args() -> list[str]:
    if given := os.environ.get("ANSIBLE_SSH_ARGS"):
        return shlex.split(given)
    config = configparser.ConfigParser(interpolation=None)
    config.read(content.ansible_cfg(), encoding="utf-8")
    return shlex.split(config.get("ssh_connection", "ssh_args", fallback="-C -o ControlMaster=auto -o ControlPersist=60s"))
