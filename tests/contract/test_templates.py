"""The templates of `init` are the topologies that the project ships."""

from __future__ import annotations

import re

from primus_bootstrap.inventory.edit.scaffold import templates
from tests.shipped import inventory_files


def test_every_shipped_topology_is_a_template() -> None:
    """A tracked folder of inventory/ with a hosts.yaml; a user's own folder is not."""
    assert templates() == tuple(path.parent.name for path in inventory_files())


def test_no_template_keeps_slurms_state_on_the_shared_file_system() -> None:
    """The controller would wait for the metadata engine of /jfs, so its failure would stop Slurm as well."""
    files = [*inventory_files(), *inventory_files("*/group_vars/**/*.yml")]
    on_jfs = [str(path) for path in files if re.search(r"slurm_shared_state_dir:\s*['\"]?/jfs", path.read_text(encoding="utf-8"))]

    assert on_jfs == []
