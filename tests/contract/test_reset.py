"""What apply brings, reset takes off: every role of the phases has a part in `playbooks/day2/reset.yml`, in an order that hurts nobody."""

from __future__ import annotations

import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases

# They change nothing of a host, or are what a reset itself stands on.
_WITHOUT = {"preflight", "host_origin", "quarantine", "kube_certificates"}
# What they bring lies on Kubernetes and bears our mark: it goes with the cluster, or by `kube_uninstall` where that stays (docs/reset.md).
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


def test_releases_go_in_the_opposite_order_of_their_coming() -> None:
    """A chart that another one stands on goes after it; every role with a release has its turn."""
    variables = yaml.safe_load((content.roles_dir() / "kube_common/vars/main.yml").read_text())
    # Those two call roles for what they check.
    phases = [phase for phase in load_phases(content.playbooks_dir()) if phase.name not in {"preflight", "verify"}]
    called = [role for phase in phases for play in phase.plays for role in play.roles]
    brought = [role for role in reversed(called) if _has_a_release(role)]

    assert variables["kube_common_reset_order"] == list(dict.fromkeys(brought))


def _has_a_release(role: str) -> bool:
    return any("tasks_from: chart_release" in file.read_text() for file in (content.roles_dir() / role / "tasks").glob("*.yml"))


def test_charts_go_before_any_host_is_touched() -> None:
    """Volumes are unmounted by pods that end, and custom resources are let go by controllers that run."""
    phases = [phase.playbook for phase in load_phases(content.playbooks_dir(), "day2/reset.yml")]

    assert phases[:2] == ["day2/reset/guard.yml", "day2/reset/charts.yml"]


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
