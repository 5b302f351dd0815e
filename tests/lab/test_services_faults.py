"""Test services with faults: the cause is reported, and the next apply, or the end of the cause, repairs them."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tests.lab.lab_rig import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

IMAGE = "node1:5000/faults:1"
# What listens where on node1, which phase brings it, and its unit.
PORTS = {
    "envoy": (8443, "gateway", "envoy"),
    "oci_registry": (5000, "registry", "docker-registry"),
    "prometheus": (9090, "monitoring", "prometheus"),
}


def told(lab: RunningLab, phase: str) -> tuple[int, str]:
    """Apply one phase, and return its exit code and output."""
    done = lab.apply("--phase", phase)
    return done.returncode, done.stdout + done.stderr


def failed(lab: RunningLab, host: str) -> dict[str, dict[str, Any]]:
    """Return the verdicts of `verify` on a host that are no pass, by check."""
    rows = [row for row in lab.verify("--limit", host)["services"] if row["host"] == host]
    records = [one for row in rows for one in row["records"]]
    return {one["check"]: one for one in records if one["verdict"] in {"fail", "unknown"}}


def reissue(folder: Path, name: str, *, ends_in: dt.timedelta, other_name: str = "") -> str:
    """Sign a certificate of `ca/hosts` with another validity, and optionally another name; return it."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    file = folder / "hosts" / f"{name}.crt"
    held, now = x509.load_pem_x509_certificate(file.read_bytes()), dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(
        authority.subject, held.subject, held.public_key(), x509.random_serial_number(), now - dt.timedelta(days=30), now + ends_in
    )
    for extension in held.extensions:
        names = isinstance(extension.value, x509.SubjectAlternativeName) and other_name
        value = x509.SubjectAlternativeName([x509.DNSName(other_name)]) if names else extension.value
        builder = builder.add_extension(value, critical=extension.critical)
    text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
    file.write_bytes(text)
    return text.decode()


@contextmanager
def other_program(lab: RunningLab, unit: str, port: int) -> Iterator[None]:
    """Run another program on a service's port during the block."""
    lab.sh("node1", f"systemctl stop {unit} && systemd-run --quiet --unit=other_program python3 -m http.server {port}")
    assert wait_for(lambda: "python3" in lab.sh("node1", f"ss -Hltnp sport = :{port}"), timeout_s=30)
    try:
        yield
    finally:
        lab.sh("node1", "systemctl stop other_program")


@contextmanager
def full(lab: RunningLab, folder: str) -> Iterator[None]:
    """Mount a small full file system over a folder during the block."""
    lab.sh("node1", f"mount -t tmpfs -o size=4m,mode=0777 full {folder} && head -c 8M /dev/zero > {folder}/filler 2> /dev/null || true")
    try:
        yield
    finally:
        lab.sh("node1", f"umount --lazy {folder}")


def test_lost_registry_during_a_push_leaves_no_partial_image(cluster: RunningLab) -> None:
    """The push fails and the image cannot be pulled; afterwards the same push succeeds."""
    podman = "podman --storage-driver=vfs"
    cluster.sh(
        "node2",
        f"head -c 60M /dev/urandom > /tmp/blob && tar -C /tmp -cf /tmp/layer.tar blob && {podman} import --quiet /tmp/layer.tar {IMAGE}",
        timeout_s=300,
    )
    with cluster.slowed("node2", 40):
        cluster.sh("node2", f"systemd-run --quiet --unit=pushing --property=Type=exec {podman} push --quiet {IMAGE}")
        assert wait_for(lambda: bool(cluster.sh("node1", "ss -Htn state established '( sport = :5000 )' | grep . || true")), timeout_s=60)
        cluster.fault("kill", "node1")
        cluster.fault("start", "node1")
        assert wait_for(
            lambda: cluster.execute("node2", "systemctl", "is-active", "--quiet", "pushing").returncode != 0, timeout_s=600, every_s=2
        )
    ended = cluster.sh("node2", "systemctl show --property Result --value pushing; systemctl reset-failed pushing 2> /dev/null || true")
    assert wait_for(lambda: cluster.execute("node1", "systemctl", "is-active", "--quiet", "docker-registry").returncode == 0, timeout_s=180)
    inspect = f"skopeo inspect docker://{IMAGE}"
    half = cluster.execute("node3", "sh", "-c", inspect, timeout_s=120)
    cluster.sh("node2", f"{podman} push --quiet {IMAGE}", timeout_s=300)
    digest = re.findall(r'"Digest": "(sha256:[0-9a-f]{64})"', cluster.sh("node3", inspect, timeout_s=120))[0]
    cluster.sh("node3", f"rm -rf /tmp/faults && skopeo copy --quiet docker://node1:5000/faults@{digest} oci:/tmp/faults", timeout_s=300)

    # A client that tries again until the registry is back has lost nothing either.
    assert (ended == "success") == (half.returncode == 0), f"{ended}: {half.stdout}{half.stderr}"
    assert half.returncode == 0 or "manifest unknown" in half.stderr
    assert wait_for(lambda: cluster.verify()["exit_code"] == 0, timeout_s=300, every_s=5)


@pytest.mark.parametrize(
    ("days", "other_name", "word"), [(-1, "", "expired"), (300, "elsewhere.example.org", "elsewhere|mismatch|not valid for")]
)
def test_wrong_certificate_of_a_host_is_replaced(applied_cluster: RunningLab, days: int, other_name: str, word: str) -> None:
    """An expired certificate, or one with another name, is reported, and the next apply replaces it."""
    text = reissue(applied_cluster.state_dir / "ca", "node2", ends_in=dt.timedelta(days=days), other_name=other_name)
    applied_cluster.sh("node2", f"cat > /etc/primus/tls/host.crt << 'END'\n{text}END\nsystemctl restart prometheus-node-exporter")
    broken = failed(applied_cluster, "node2")
    status, printed = told(applied_cluster, "monitoring")

    assert broken, "the certificate was not missed"
    assert any(re.search(word, f"{one['found']} {one.get('reason', '')}") for one in broken.values()), broken
    assert all(one.get("fix") for one in broken.values()), broken
    assert status == 0, printed
    assert failed(applied_cluster, "node2") == {}


def test_expired_certificate_of_the_gateway_is_replaced(applied_cluster: RunningLab) -> None:
    """Verify reports it, and the next apply of the phase replaces it."""
    text = reissue(applied_cluster.state_dir / "ca", "node1+edge", ends_in=dt.timedelta(days=-1))
    shown = applied_cluster.sh("node1", "ls /etc/envoy/tls/*.crt")
    applied_cluster.sh("node1", f"for file in {' '.join(shown.split())}; do cat > $file << 'END'\n{text}END\ndone; systemctl restart envoy")
    assert wait_for(
        lambda: any("expired" in one.get("reason", "") for one in failed(applied_cluster, "node1").values()), timeout_s=60, every_s=5
    )
    status, printed = told(applied_cluster, "gateway")

    assert status == 0, printed
    assert not [check for check in failed(applied_cluster, "node1") if check.startswith("envoy.")]


@pytest.mark.parametrize("service", list(PORTS))
def test_used_port_of_a_service_is_reported(applied_cluster: RunningLab, service: str) -> None:
    """The phase fails with the port and its program, and changes nothing; without the program it succeeds."""
    port, phase, unit = PORTS[service]
    with other_program(applied_cluster, unit, port):
        status, printed = told(applied_cluster, phase)
        report = applied_cluster.last_report()
    healed, again = told(applied_cluster, phase)

    assert status == 4, printed
    assert re.search(rf"[Pp]ort {port} .*in use by .*python3", printed), printed
    assert "fix:" in printed
    assert {one["host"]: one["changed"] for one in report["hosts"]}["node1"] == 0
    assert healed == 0, again
    assert applied_cluster.sh("node1", f"systemctl is-active {unit}") == "active"


@pytest.mark.parametrize(
    ("folder", "service"), [("/var/lib/docker-registry", "oci_registry"), ("/var/lib/prometheus/metrics2", "prometheus")]
)
def test_full_disk_is_reported_with_its_folder(applied_cluster: RunningLab, folder: str, service: str) -> None:
    """Verify fails with the folder, and passes with free space."""
    with full(applied_cluster, folder):
        broken = failed(applied_cluster, "node1")
    named = {check: one for check, one in broken.items() if check == f"{service}.disk"}

    assert named, broken
    assert folder in str(named), named
    assert all(one["fix"] for one in named.values())
    assert wait_for(
        lambda: not [check for check in failed(applied_cluster, "node1") if check.startswith(service)], timeout_s=120, every_s=5
    )
