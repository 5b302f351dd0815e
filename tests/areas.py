"""The code that each slow test file tests. `make test` leaves out a file if nothing of its area differs from the main branch.

Files without an area always run, and `make test-all` runs all. tests/contract/test_areas.py compares the areas with the imports
of each file and with the roles and playbooks that it names. If in doubt, name more, or no area.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

# A change in one of these concerns every test.
ALWAYS = (
    "constraints.txt", "pyproject.toml", "ansible.cfg", "tools/setup.sh", "primus_bootstrap/__init__.py", "primus_bootstrap/content.py",
    "primus_bootstrap/core", "tests/conftest.py", "tests/changed.py", "tests/areas.py",
    "tests/left_out.py",
)  # fmt: skip
# What Ansible loads for every role, and primus_bootstrap/launch/safe_files.py, which is a module of some.
_ANSIBLE = ("plugins", "primus_bootstrap/launch/safe_files.py")
_INVENTORY = ("primus_bootstrap/inventory", "inventory")
_LAUNCH = ("primus_bootstrap/launch", "workloads", "plugins", "playbooks/site.yml", "tests/data/sysfs")
_KUBERNETES = (
    "roles/kube*", "roles/prometheus/files", "playbooks", "primus_bootstrap/kubernetes", "primus_bootstrap/engine",
    "primus_bootstrap/launch", *_INVENTORY, *_ANSIBLE,
)  # fmt: skip
_ON_KUBERNETES = ("roles/jobset", "roles/kueue", "roles/trainer", "roles/gpu_operator", "roles/registry_trust", "roles/node_health")
_PROGRAM = ("primus_bootstrap", "inventory", "playbooks", "plugins")
# Test files -> paths. A file has the paths of all patterns that match. `*` matches any text.
AREAS = {
    "tests/workloads/*": (*_LAUNCH, "docs/benchmarks.md", "docs/training.md", "roles/bench", "tests/data/fio", "tools/gpu_measure.py"),
    "tests/kubernetes/*": (
        "tests/kubernetes", "primus_bootstrap/lab", "primus_bootstrap/kubernetes", "roles/kube*", "roles/prometheus/files", "playbooks",
        *_ON_KUBERNETES, *_ANSIBLE,
    ),
    "tests/kubernetes/test_kube_*": _KUBERNETES,
    "tests/kubernetes/test_*_on_nodes.py": (*_PROGRAM, *_LAUNCH, "roles/primus_watch", "roles/workload"),
    "tests/kubernetes/test_higress_*": ("roles/higress", *_INVENTORY),
    "tests/kubernetes/test_workload_*": (*_LAUNCH, *_INVENTORY, "roles/primus_watch", "docs/workloads.md"),
    "tests/integration/test_inventory_mutations.py": (
        "primus_bootstrap/launch", "playbooks", "plugins", "roles/*/meta", "roles/*/defaults", "roles/*/vars", "roles/*/filter_plugins",
        *_INVENTORY,
    ),
    "tests/integration/test_engine_*": (*_PROGRAM, "roles/baseline", "roles/kube*", "roles/preflight", "roles/prometheus", "roles/redis"),
    "tests/integration/test_fleet_*": _PROGRAM,
    "tests/integration/test_node_verbs_real.py": (*_PROGRAM, "roles"),
    "tests/integration/test_verbs_are_transactions.py": (*_PROGRAM, "roles"),
    "tests/integration/test_workload_*": (*_PROGRAM, "workloads", "roles"),
    "tests/integration/test_kubernetes_*": (*_PROGRAM, "roles", "docs/kubernetes-day2.md"),
    "tests/integration/test_kube_*": _KUBERNETES,
    "tests/integration/test_kubespray_*": _KUBERNETES,
    "tests/integration/test_launch_*": (*_LAUNCH, "inventory", "roles/primus_cli", "tests/data/failures"),
    "tests/integration/test_checks_*": (*_LAUNCH, "roles/gpu_driver"),
    "tests/integration/test_watch_*": (*_LAUNCH, *_INVENTORY, "primus_bootstrap/fleet", "roles/quarantine"),
    "tests/integration/test_safe_files_*": ("primus_bootstrap/launch",),
    "tests/integration/test_bench_group_*": ("roles/bench", "primus_bootstrap/bench", *_LAUNCH),
    "tests/integration/test_bench_r*_by_ansible.py": ("roles/bench", "roles/preflight", "primus_bootstrap/bench", *_LAUNCH),
    "tests/integration/test_munge_key_by_ansible.py": ("roles/munge", "roles/slurm*", "roles/preflight", "playbooks", *_ANSIBLE),
    "tests/integration/test_reboot_*": ("roles/baseline", "roles/node_health", "roles/gpu_driver", "roles/redis", "playbooks", *_LAUNCH),
    "tests/integration/test_slurm_*": ("roles/slurm", "playbooks", *_ANSIBLE),
    "tests/integration/test_node_health_real.py": ("roles/node_health", *_ANSIBLE),
    "tests/integration/test_node_health_checks_real.py": ("roles/node_health", *_LAUNCH),
    "tests/integration/test_host_tuning_real.py": ("roles/baseline", *_ANSIBLE),
    "tests/integration/test_lab_*": ("primus_bootstrap/lab", "roles/redis", "roles/slurm_accounting"),
    # More than the role of their name.
    "tests/integration/test_role_airgap_*": ("playbooks/vars",),
    "tests/integration/test_role_bench_*": ("roles/preflight",),
    "tests/integration/test_role_envoy_*": (*_INVENTORY, "playbooks/site.yml"),
    "tests/integration/test_role_harbor_*": ("roles/kube_common",),
    "tests/integration/test_role_higress_*": ("roles/harbor", "roles/kube_common", *_INVENTORY),
    "tests/integration/test_role_node_exporter_*": ("roles/baseline", "roles/host_certificate", "roles/prometheus"),
    "tests/integration/test_role_juicefs_migrate_*": (
        "roles/baseline", "roles/host_certificate", "roles/object_store", "roles/redis", "playbooks", *_INVENTORY,
    ),
    "tests/integration/test_role_object_store_*": ("roles/baseline", "roles/juicefs", *_INVENTORY),
    "tests/integration/test_role_primus_exporter_*": ("roles/node_health", "roles/quarantine", "roles/slurm", *_LAUNCH),
    "tests/integration/test_role_redis_*": (
        "roles/baseline", "roles/host_certificate", "roles/juicefs", "roles/object_store", "playbooks", *_INVENTORY,
    ),
}  # fmt: skip


@cache
def _roles() -> frozenset[str]:
    return frozenset(folder.name for folder in (Path(__file__).parent.parent / "roles").iterdir())


def role_of(test: str) -> str:
    """Return the role that a file `test_role_<role>_…py` tests; empty if there is none."""
    words = Path(test).stem.removeprefix("test_role_").split("_") if test.startswith("tests/integration/test_role_") else []
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    return next((name for name in names if name in _roles()), "")


def area_of(test: str) -> tuple[str, ...]:
    """Return the paths that a test file tests; empty if it always runs."""
    paths = [path for pattern, area in AREAS.items() if fnmatchcase(test, pattern) for path in area]
    role = role_of(test)
    return (*paths, *((f"roles/{role}", *_ANSIBLE) if role else ()))
