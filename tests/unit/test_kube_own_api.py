"""Test the role `kubespray`: the API server that a control plane uses, and the server address for new hosts."""

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
def test_wrong_endpoint_is_corrected(endpoint: str, addresses: list[str], wanted: str) -> None:
    """The name of a load balancer stays, and without a known address nothing is written."""
    one = {"metadata": {"namespace": "kube-system", "name": "kubeadm-config"}, "data": {"ClusterConfiguration": ""}}
    one["data"]["ClusterConfiguration"] = yaml.safe_dump({"controlPlaneEndpoint": endpoint} if endpoint else {"kind": "x"})
    found = plugin("kubespray", "kubespray").kubespray_join_patches([one], addresses)

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
def test_own_api_server_is_at_its_bind_address(bound: str, server: str) -> None:
    """It is loopback if the server binds to all addresses, or else its address."""
    assert plugin("kubespray", "kubespray").kubespray_own_api(bound, 6443) == server
