"""`playbooks/day2/reset.yml` resets every role of the phases, dependents before what they use."""

from __future__ import annotations

import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases

# These roles change no host, or the reset itself uses them.
_NO_RESET = {"preflight", "host_origin", "quarantine", "kube_certificates"}
# Their objects are removed with the cluster, or by `kube_uninstall` if the cluster stays (docs/reset.md).
_ON_KUBERNETES = {
    "gpu_operator", "harbor", "higress", "jobset", "juicefs_csi", "kube_cert_manager", "kube_gateway_api",
    "kube_helm", "kube_prometheus_stack", "kueue", "trainer",
}  # fmt: skip


def roles_of(playbook: str) -> list[str]:
    """Return the roles that a playbook's phases call, in order."""
    return [role for phase in load_phases(content.playbooks_dir(), playbook) for play in phase.plays for role in play.roles]


def test_every_role_that_apply_runs_is_reset() -> None:
    """Without a reset, files of a role remain on every host."""
    missing = set(roles_of("site.yml")) - set(roles_of("day2/reset.yml")) - _NO_RESET - _ON_KUBERNETES

    where = "playbooks/day2/reset/<phase>.yml, and import that playbook in playbooks/day2/reset.yml"
    assert missing == set(), f"call tasks/reset.yml of these roles in {where}; or except them in {__file__}"


def test_releases_are_removed_in_reverse_order() -> None:
    """A reset removes a chart after the charts that use it, and includes every role with a release."""
    variables = yaml.safe_load((content.roles_dir() / "kube_common/vars/main.yml").read_text())
    # These phases call roles only to check.
    phases = [phase for phase in load_phases(content.playbooks_dir()) if phase.name not in {"preflight", "verify"}]
    called = [role for phase in phases for play in phase.plays for role in play.roles]
    installed = [role for role in reversed(called) if _has_a_release(role)]

    assert variables["kube_common_reset_order"] == list(dict.fromkeys(installed))


def _has_a_release(role: str) -> bool:
    return any("tasks_from: chart_release" in file.read_text() for file in (content.roles_dir() / role / "tasks").glob("*.yml"))


def test_charts_are_removed_before_any_host_is_changed() -> None:
    """Ending pods unmount volumes, and running controllers remove finalizers of custom resources."""
    phases = [phase.playbook for phase in load_phases(content.playbooks_dir(), "day2/reset.yml")]

    assert phases[:2] == ["day2/reset/guard.yml", "day2/reset/charts.yml"]


def test_users_of_a_service_are_reset_before_it() -> None:
    """Slurm is reset before the mount, the mount before Redis, and the accounts last."""
    order = list(dict.fromkeys(role for role in roles_of("day2/reset.yml") if role != "host_origin"))

    assert order.index("slurm") < order.index("slurm_accounting") < order.index("munge") < order.index("juicefs") < order.index("redis")
    assert order.index("redis") < order.index("baseline")
    assert order[-1] == "users_groups"


def test_the_original_state_of_a_host_is_recorded_first() -> None:
    """host_origin runs before any role that changes a host."""
    first = next(phase for phase in load_phases(content.playbooks_dir()) if phase.name != "preflight")

    assert first.roles[0] == "host_origin"
