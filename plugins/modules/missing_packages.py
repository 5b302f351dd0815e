#!/usr/bin/python
"""Ansible module `missing_packages`: return which packages are not installed. It changes nothing.

ansible.builtin.apt would update the package lists on every run, and package_facts needs python3-apt, which a new host lacks.
In check mode it reports the change that the installation would make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Iterable

# They exit with 1 (rpm: with the number of missing packages) if a package is missing.
DEBIAN = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n"]
REDHAT = ["rpm", "--query", "--queryformat", "installed %{NAME}\n"]
FIRST_SHELL_ERROR = 126


def missing(names: Iterable[str], output: str) -> list[str]:
    """Return the names that a query did not report as installed. A package that was removed but not purged is missing."""
    installed = {line.partition(" ")[2] for line in output.splitlines() if line.startswith("installed ")}
    return [name for name in names if name not in installed]


def main() -> None:
    """Query the package manager."""
    module = AnsibleModule({"names": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True)
    names = module.params["names"]
    query = DEBIAN if module.get_bin_path("apt-get") else REDHAT
    status, output, error = module.run_command([*query, *names]) if names else (0, "", "")
    if status >= FIRST_SHELL_ERROR:
        module.fail_json(msg=f"{query[0]} failed: {error.strip()}. Fix: repair the package database of this host")
    found = missing(names, output)
    module.exit_json(changed=module.check_mode and bool(found), missing=found)


if __name__ == "__main__":
    main()
