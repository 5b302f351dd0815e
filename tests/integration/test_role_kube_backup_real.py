"""Role `kube_backup`: health of the local API server and etcd member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_file
from tests.unit.test_role_kube_backup import KUBESPRAY, ROLE, member, settings

if TYPE_CHECKING:
    from pathlib import Path

serves: Any = load_file(ROLE / "files/etcd_serves.py", "etcd_serves")


def test_only_the_local_api_server_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubeconfig names another or the shared address, which answers although the local server does not."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncase "$*" in *https://127.0.0.1:7443*) exit 1;; esac\necho ok\n')
    kubectl.chmod(0o755)
    (tmp_path / "manifests").mkdir()
    known = settings(tmp_path, kubectl=str(kubectl), kubeconfig="/etc/kubernetes/admin.conf")
    manifest = tmp_path / "manifests/kube-apiserver.yaml"

    assert not member.api_answers(known), "it has no API server"
    manifest.write_text("    - --secure-port=7443\n", encoding="utf-8")
    assert not member.api_answers(known)
    monkeypatch.setattr(serves, "wait_until", lambda holds, *_: holds() or pytest.fail("it does not serve"))
    manifest.write_text("    - --secure-port=6443\n", encoding="utf-8")
    assert serves.wait(known, 1.0) == ["kube-apiserver"]
    words = ["--kubeconfig /etc/kubernetes/admin.conf", "--server https://127.0.0.1:6443", "--tls-server-name=kubernetes", "--raw=/readyz"]
    assert [word in (tmp_path / "asked").read_text() for word in words] == [True] * 4


@pytest.mark.parametrize(
    ("output", "serving"),
    [('[{"endpoint": "x", "health": true}]', True), ('[{"endpoint": "x", "health": false}]', False), ("", False), ("exit 1", False)],
)
def test_member_serves_if_it_reads_through_its_leader(tmp_path: Path, output: str, *, serving: bool) -> None:
    """`etcdctl endpoint health` of this host decides. A known leader is not enough; no answer fails."""
    etcdctl = tmp_path / "etcdctl"
    etcdctl.write_text(f"#!/bin/sh\n{output if output.startswith('exit') else f'echo {output!r}'}\n")
    etcdctl.chmod(0o755)
    (tmp_path / "etcd.env").write_text(KUBESPRAY, encoding="utf-8")
    known = settings(tmp_path, etcdctl=str(etcdctl))

    assert serves.member_serves(known, member.find_member(known)) is serving
