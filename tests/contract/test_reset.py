"""What apply brings, reset takes off: every role of the phases has a part in `playbooks/day2/reset.yml`, in an order that hurts nobody."""

from __future__ import annotations

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases

# They change nothing of a host, or are what a reset itself stands on.
_WITHOUT = {"preflight", "host_origin", "quarantine"}
# What they bring lies on Kubernetes, not on hosts: it goes with the cluster, and stays on one that somebody else made (docs/reset.md).
_ON_KUBERNETES = {
    "gpu_operator",
    "harbor",
    "higress",
    "jobset",
    "juicefs_csi",
    "kube_cert_manager",
    "kube_gateway_api",
    "kube_helm",
    "kube_prometheus_stack",
    "kueue",
    "trainer",
}


def roles_of(playbook: str) -> list[str]:
    """Return the roles that a playbook's phases call, in order."""
    return [role for phase in load_phases(content.playbooks_dir(), playbook) for play in phase.plays for role in play.roles]


def test_every_role_that_apply_runs_is_reset() -> None:
    """A role without a reset would leave something behind on every host."""
    assert set(roles_of("site.yml")) - set(roles_of("day2/reset.yml")) - _WITHOUT - _ON_KUBERNETES == set()


def test_what_uses_a_service_goes_before_it() -> None:
    """Jobs end before the mount goes, the mount before Redis, and the accounts last."""
    order = list(dict.fromkeys(role for role in roles_of("day2/reset.yml") if role != "host_origin"))

    assert order.index("slurm") < order.index("slurm_accounting") < order.index("munge") < order.index("juicefs") < order.index("redis")
    assert order.index("redis") < order.index("baseline")
    assert order[-1] == "users_groups"


def test_the_operating_system_is_recorded_before_anything_is_changed() -> None:
    """The record of what a host was is taken by the first role that may change it."""
    first = next(phase for phase in load_phases(content.playbooks_dir()) if phase.name != "preflight")

    assert first.roles[0] == "host_origin"
