"""The templates of `init` are the topologies that the project ships."""

from __future__ import annotations

from primus_bootstrap.inventory.edit.scaffold import templates
from tests.shipped import inventory_files


def test_every_shipped_topology_is_a_template() -> None:
    """A tracked folder of inventory/ with a hosts.yaml; a user's own folder is not."""
    assert templates() == tuple(path.parent.name for path in inventory_files())
