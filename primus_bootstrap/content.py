"""Where the shipped playbooks, roles, inventories and workloads lie: the only module that knows both layouts.

In a checkout they stand beside the package; in a wheel they are inside it, under `content/`.
"""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

# The end of a play's host pattern by which `-e node=NAME` narrows a phase down to one host.
NARROWED = ":&{{ node | default('all') }}"
# A play for every host of a cluster whose named group has hosts, and for none of another cluster; Ansible's patterns cannot say that.
EVERY_HOST_WITH = re.compile(r"^\{\{ 'all' if groups\['(\w+)'\] \| default\(\[\]\) else '\1' \}\}$")
# The host that a day-2 playbook is about: of a replacement, the one that leaves.
THE_NODE = "{{ old | default(node | default('nobody')) }}"


def content_root() -> Path:
    """Return the folder that holds `playbooks/`, `roles/`, `inventory/` and `workloads/`."""
    bundled = _PACKAGE / "content"
    return bundled if bundled.is_dir() else _PACKAGE.parent


def playbooks_dir() -> Path:
    """Return the folder of `site.yml` and the phases."""
    return content_root() / "playbooks"


def roles_dir() -> Path:
    """Return the folder of the roles."""
    return content_root() / "roles"


def topologies_dir() -> Path:
    """Return the folder of the example inventories, one folder a topology."""
    return content_root() / "inventory"


def jobs_dir() -> Path:
    """Return the folder of the training jobs that are shipped, one file a job."""
    return content_root() / "workloads" / "jobs"


def ansible_cfg() -> Path:
    """Return the `ansible.cfg` that every run of ours uses."""
    return content_root() / "ansible.cfg"
