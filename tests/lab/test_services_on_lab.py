"""Test the services of the lab from outside: alerts, the gateway and the registry."""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]


@pytest.fixture
def receiver(applied_cluster: RunningLab) -> Iterator[list[tuple[str, str, str]]]:
    """Receive alerts in this process; yields a list of (status, alert, host)."""
    told: list[tuple[str, str, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.extend((one["status"], one["labels"]["alertname"], one["labels"].get("instance", "")) for one in message["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Disable the log."""

    # The machine's own address in the lab's network.
    address = applied_cluster.address("node1").rpartition(".")[0] + ".1"
    with ThreadingHTTPServer((address, 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stated = applied_cluster.folder / "group_vars" / "alertmanager.yml"
        stated.parent.mkdir(exist_ok=True)
        hook = applied_cluster.folder / "webhook"
        hook.write_text(f"http://{address}:{server.server_port}/")
        look_up = "{{ lookup('ansible.builtin.file', inventory_dir ~ '/webhook') }}"  # such a URL counts as a secret
        stated.write_text(f'alertmanager_receivers: [{{name: test, webhook_url: "{look_up}"}}]\nalertmanager_group_wait_s: 5\n')
        try:
            done = applied_cluster.apply("--phase", "monitoring")
            assert done.returncode == 0, done.stdout + done.stderr
            yield told
        finally:
            server.shutdown()
            thread.join(timeout=30)
            stated.unlink()
            hook.unlink()
            applied_cluster.heal()
            assert applied_cluster.apply("--phase", "monitoring").returncode == 0


def test_alert_for_a_host_that_is_down(applied_cluster: RunningLab, receiver: list[tuple[str, str, str]]) -> None:
    """NodeDown is sent for that host only and resolved later; its other alerts are silenced."""
    applied_cluster.fault("pause", "node3")
    assert wait_for(lambda: ("firing", "NodeDown", "node3") in receiver, timeout_s=400, every_s=1), receiver
    applied_cluster.fault("heal", "node3")
    assert wait_for(lambda: ("resolved", "NodeDown", "node3") in receiver, timeout_s=400, every_s=1), receiver

    assert {host for _, alert, host in receiver if alert == "NodeDown"} == {"node3"}


def ask(lab: RunningLab, key: str) -> tuple[int, str]:
    """Query Prometheus through the gateway with a key; return the status and the body."""
    context = ssl.create_default_context(cafile=str(lab.state_dir / "ca" / "ca.crt"))
    url = f"https://{lab.address('node1')}:8443/prometheus/api/v1/query?query=up"
    password = (lab.state_dir / "secrets" / "prometheus_password").read_text().split()[0]
    account = base64.b64encode(f"prometheus:{password}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {account}", **({"x-api-key": key} if key else {})})
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:  # noqa: S310 - the same
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_gateway_requires_a_key_and_limits_requests(applied_cluster: RunningLab) -> None:
    """A valid key gives an answer, a missing or wrong one 401, and too many requests 429."""
    key = (applied_cluster.state_dir / "secrets" / "gateway_ada").read_text().split()[0]
    status, answer = ask(applied_cluster, key)

    assert (status, json.loads(answer)["status"]) == (200, "success")
    assert [ask(applied_cluster, other)[0] for other in ("", "another-key-0123456789")] == [401, 401]
    assert 429 in [ask(applied_cluster, key)[0] for _ in range(40)]


def test_image_is_pushed_and_pulled(applied_cluster: RunningLab) -> None:
    """An image that one host pushed is pulled on another one by its digest."""
    make = "mkdir -p /tmp/image && echo hello > /tmp/image/hello && tar -C /tmp/image -cf /tmp/layer.tar . && podman --storage-driver=vfs"
    applied_cluster.sh("node2", f"{make} import --quiet /tmp/layer.tar node1:5000/hello:1 > /dev/null", timeout_s=120)
    applied_cluster.sh("node2", "podman --storage-driver=vfs push --quiet node1:5000/hello:1", timeout_s=120)
    described = applied_cluster.sh("node3", "skopeo inspect docker://node1:5000/hello:1", timeout_s=120)
    digest = re.findall(r'"Digest": "(sha256:[0-9a-f]{64})"', described)[0]

    applied_cluster.sh("node3", f"skopeo copy --quiet docker://node1:5000/hello@{digest} oci:/tmp/pulled", timeout_s=120)
    assert digest.removeprefix("sha256:") in applied_cluster.sh("node3", "ls /tmp/pulled/blobs/sha256")
