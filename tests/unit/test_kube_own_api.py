"""Which API server a control plane asks, and where hosts that join are sent: the role `kubespray` by plain Ansible, kubectl from files."""

from __future__ import annotations

import pytest
import yaml

from tests.unit.kueue_rig import plugin


@pytest.mark.parametrize(
    ("endpoint", "addresses", "wanted"),
    [
        ("10.0.0.1:6443", ["10.0.0.2"], "10.0.0.2:6443"),
        ("10.0.0.2:8443", ["192.168.0.2", "10.0.0.2"], ""),
        ("[fd00::1]:8443", ["fd00::2"], "[fd00::2]:8443"),
        ("lb.example.com:6443", ["10.0.0.2"], ""),
        ("", ["10.0.0.2"], ""),
        ("10.0.0.1:6443", [], ""),
    ],
)
def test_an_endpoint_that_is_not_the_firsts_is_put_right(endpoint: str, addresses: list[str], wanted: str) -> None:
    """A name is a load balancer's and stays, and where nobody knows an address nothing is written."""
    one = {"metadata": {"namespace": "kube-system", "name": "kubeadm-config"}, "data": {"ClusterConfiguration": ""}}
    one["data"]["ClusterConfiguration"] = yaml.safe_dump({"controlPlaneEndpoint": endpoint} if endpoint else {"kind": "x"})
    found = plugin("kubespray", "kubespray").kubespray_origin([one], addresses)

    assert [yaml.safe_load(patch["patch"]["data"]["ClusterConfiguration"])["controlPlaneEndpoint"] for patch in found] == [wanted] * bool(
        wanted
    )


@pytest.mark.parametrize(
    ("bound", "server"),
    [
        ("::", "https://127.0.0.1:6443"),
        ("0.0.0.0", "https://127.0.0.1:6443"),  # noqa: S104 - nothing is bound here
        ("10.0.0.2", "https://10.0.0.2:6443"),
        ("fd00::2", "https://[fd00::2]:6443"),
    ],
)
def test_the_own_api_server_is_where_it_listens(bound: str, server: str) -> None:
    """On loopback where it listens everywhere, else at its one address."""
    assert plugin("kubespray", "kubespray").kubespray_own_api(bound, 6443) == server
