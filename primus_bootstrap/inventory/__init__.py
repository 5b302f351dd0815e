"""Load and validate hosts.yaml, and edit it. Contacts no host."""

from primus_bootstrap.inventory.cluster import Cluster, Connection, Host, Origin
from primus_bootstrap.inventory.load import Validation, find_problems, load_cluster, validate
from primus_bootstrap.inventory.schema.definition_checks import Deferred

__all__ = ["Cluster", "Connection", "Deferred", "Host", "Origin", "Validation", "find_problems", "load_cluster", "validate"]
