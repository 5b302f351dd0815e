"""Paths of the shipped playbooks, roles, inventories, workloads and data that several packages read.

In a checkout the folders are next to the package; in a wheel they are in its folder `content/`.
"""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

# A host pattern with this end is narrowed to one host by `-e node=NAME`.
NARROWED = ":&{{ node | default('all') }}"
# This pattern selects all hosts if the named group has hosts, else none. Ansible has no pattern for it.
EVERY_HOST_WITH = re.compile(r"^\{\{ 'all' if groups\['(\w+)'\] \| default\(\[\]\) else '\1' \}\}$")
# The host that a day-2 playbook works on; in a replacement, the old one.
THE_NODE = "{{ old | default(node | default('nobody')) }}"
# This pattern selects the other hosts of the named group if that host is in it, else none.
OTHERS_OF = re.compile(r"^\{\{ '(\w+):!' ~ old \| default\(.*\) in groups\['\1'\] \| default\(\[\]\) else 'nobody' \}\}$")


def content_root() -> Path:
    """Return the folder with `playbooks/`, `roles/`, `inventory/` and `workloads/`."""
    bundled = _PACKAGE / "content"
    return bundled if bundled.is_dir() else _PACKAGE.parent


def playbooks_dir() -> Path:
    """Return the folder of `site.yml` and the phases."""
    return content_root() / "playbooks"


def roles_dir() -> Path:
    """Return the folder of the roles."""
    return content_root() / "roles"


def plugins_dir() -> Path:
    """Return the folder of the Ansible plug-ins that several roles use."""
    return content_root() / "plugins"


def topologies_dir() -> Path:
    """Return the folder of the example inventories, with one folder per topology."""
    return content_root() / "inventory"


def jobs_dir() -> Path:
    """Return the folder of the shipped training jobs, with one file per job."""
    return content_root() / "workloads" / "jobs"


def bench_policy() -> Path:
    """Return the default policy of the bench."""
    return _PACKAGE / "bench" / "data" / "policy.yml"


def ansible_cfg() -> Path:
    """Return the `ansible.cfg` for all runs."""
    return content_root() / "ansible.cfg"
