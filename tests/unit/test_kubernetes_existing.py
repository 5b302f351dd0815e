"""Test `kubernetes_provider: existing`: the checks before the first change, with the real Ansible and without an API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import Call, Play, groups_in, load_phases
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.kubernetes.node_labels import INFRA, RACK, desired_node
from tests.playbooks import one_line, run_playbook

if TYPE_CHECKING:
    from pathlib import Path

KUBERNETES_VARS = content.playbooks_dir() / "vars" / "kubernetes.yml"


def play(hosts: Path, playbook: str, *words: str) -> tuple[int, str]:
    """Run a playbook; return its exit code and its output on one line."""
    done = run_playbook(hosts, playbook, *words)
    return done.returncode, one_line(done)


def phase_plays(name: str) -> tuple[Play, ...]:
    """Return the plays of one phase of site.yml."""
    return next(phase.plays for phase in load_phases(content.playbooks_dir()) if phase.name == name)


def test_kubeconfig_is_checked_before_the_first_change() -> None:
    """The phase preflight checks the kubeconfig for all hosts that use it later, and a failure stops the run."""
    judging = [play for play in phase_plays("preflight") if Call("kubespray", "reach") in play.calls]
    later = {
        group
        for phase in load_phases(content.playbooks_dir())
        for play in phase.plays
        if KUBERNETES_VARS in play.vars_files
        for group in groups_in(play.pattern)
    }

    assert next(phase.name for phase in load_phases(content.playbooks_dir())) == "preflight"
    assert [play.any_errors_fatal for play in judging] == [True]
    assert later <= set(groups_in(judging[0].pattern))


@pytest.mark.parametrize("topology", ["mi300x", "airgap"])
def test_workers_of_the_examples_have_racks(topology: str) -> None:
    """Every GPU node has a rack and gets the label with which queues place jobs. Infrastructure nodes get the label of the services."""
    cluster = load_cluster(content.topologies_dir() / topology)
    variables = {host: cluster.view.variables(host) for host in cluster.groups["kube_node"]}
    racks = [variables[host].get("rack") for host in cluster.groups["gpu_node"]]
    infra = {host for host in variables if dict(desired_node(host, variables[host]).labels).get(INFRA) == "true"}

    assert infra == {"infra1", "infra2", "infra3"}
    assert {rack: racks.count(rack) for rack in racks} == {f"rack{number:02}": 8 for number in range(1, 9)}
    assert dict(desired_node("gpu001", variables["gpu001"]).labels)[RACK] == "rack01"
    assert cluster.view.variables(cluster.groups["kueue"][0])["kueue_topology_levels"] == [RACK]
