"""The environment variables for Ansible: strict host keys, the run's own inventory and the shipped ansible.cfg."""

from __future__ import annotations

import configparser
import os
import shlex
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.engine.ssh import strict_host_keys
from primus_bootstrap.inventory.snapshot import plugin_settings

if TYPE_CHECKING:
    from pathlib import Path


def ansible_environment(known_hosts: Path, private_dir: Path) -> dict[str, str]:
    """Return the whole environment for Ansible: the user's (proxies, SSH agent, ANSIBLE_FORKS, …) with our settings on top.

    Args:
        known_hosts: The file with the pinned host keys.
        private_dir: A folder for this run only, with a short path: the path of a Unix socket has at most 108 bytes.
    """
    return (
        dict(os.environ)
        | _utf8_locale()
        | {
            "ANSIBLE_CONFIG": str(content.ansible_cfg()),
            **plugin_settings(),
            # Without this, ansible-runner disables host key checking.
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_SSH_ARGS": shlex.join([*strict_host_keys(known_hosts), *_base_ssh_args()]),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(private_dir / "cp"),
            # Ansible writes decrypted Vault files and modules here. The folder is deleted when the run ends.
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


def _utf8_locale() -> dict[str, str]:
    """Return LC_ALL=C.UTF-8 if the locale is not a UTF-8 one: Ansible needs UTF-8 to start."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    return {} if "utf8" in locale.lower().replace("-", "") else {"LC_ALL": "C.UTF-8"}


def _base_ssh_args() -> list[str]:
    if arguments := os.environ.get("ANSIBLE_SSH_ARGS"):
        return shlex.split(arguments)
    config = configparser.ConfigParser(interpolation=None)
    config.read(content.ansible_cfg(), encoding="utf-8")
    return shlex.split(config.get("ssh_connection", "ssh_args", fallback="-C -o ControlMaster=auto -o ControlPersist=60s"))
