"""Role `kube_backup`: etcd detection, restore checks, choice of the backup host, and rotation."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from pathlib import Path

ROLE = content.roles_dir() / "kube_backup"
member: Any = load_file(ROLE / "files/etcd_member.py", "etcd_member")
backup: Any = load_file(ROLE / "files/etcd_backup.py", "etcd_backup")
restore: Any = load_file(ROLE / "files/etcd_restore.py", "etcd_restore")
quorum: Any = load_file(ROLE / "files/etcd_quorum.py", "etcd_quorum")
verify: Any = load_file(ROLE / "files/etcd_verify.py", "etcd_verify")
chosen: Any = load_file(ROLE / "filter_plugins/kube_backup.py", "kube_backup_filter")
certificates: Any = load_file(content.roles_dir() / "kube_certificates/filter_plugins/kube_certificates.py", "kube_certificates_filter")
copies: Any = load_file(ROLE / "action_plugins/kube_backup_copies.py", "kube_backup_copies")

KUBESPRAY = """# Environment file for etcd 3.6.1
ETCD_DATA_DIR=/var/lib/etcd
ETCD_ADVERTISE_CLIENT_URLS=https://10.0.0.1:2379
ETCD_INITIAL_ADVERTISE_PEER_URLS=https://10.0.0.1:2380
ETCD_LISTEN_CLIENT_URLS=https://10.0.0.1:2379,https://127.0.0.1:2379
ETCD_NAME=etcd1
ETCD_TRUSTED_CA_FILE=/etc/ssl/etcd/ssl/ca.pem
ETCD_CERT_FILE="/etc/ssl/etcd/ssl/member-cp1.pem"
ETCD_KEY_FILE=/etc/ssl/etcd/ssl/member-cp1-key.pem
"""
KUBEADM = """spec:
  containers:
  - command:
    - etcd
    - --advertise-client-urls=https://10.0.0.1:2379
    - --cert-file=/etc/kubernetes/pki/etcd/server.crt
    - --data-dir=/var/lib/etcd
    - --initial-advertise-peer-urls=https://10.0.0.1:2380
    - --key-file=/etc/kubernetes/pki/etcd/server.key
    - --listen-client-urls=https://127.0.0.1:2379,https://10.0.0.1:2379
    - --name=cp1
    - --trusted-ca-file=/etc/kubernetes/pki/etcd/ca.crt
"""
ETCD = {"version": "3.6.1", "revision": 90, "sha256": "aa", "keys": 40}
BACKUP = {"cluster": "demo", "etcd": ETCD, "identity": {"/pki/ca.crt": "11"}}
FOUND = {"sha256": "aa", "revision": 90, "keys": 40, "identity": {"/pki/ca.crt": "11"}, "version": "3.6.5"}
WANTED = {"cluster": "demo", "members": {"m1": "http://a", "m2": "http://b", "m3": "http://c"}}


def settings(root: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a host whose files are below a folder."""
    return {"env_file": str(root / "etcd.env"), "manifest_dir": str(root / "manifests"), "host": "m1", **more}


def test_etcd_settings_of_kubespray_and_kubeadm_are_parsed(tmp_path: Path) -> None:
    """Both give the same facts with the loopback endpoint. A host without etcd has none."""
    assert member.find_member(settings(tmp_path)).form == ""
    (tmp_path / "etcd.env").write_text(KUBESPRAY, encoding="utf-8")
    host = member.find_member(settings(tmp_path))
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/etcd.yaml").write_text(KUBEADM, encoding="utf-8")
    pod = member.find_member(settings(tmp_path))

    facts = ("https://127.0.0.1:2379", "https://10.0.0.1:2380", "/var/lib/etcd")
    assert (host.form, host.name, host.cert) == ("systemd", "etcd1", "/etc/ssl/etcd/ssl/member-cp1.pem")
    assert (pod.form, pod.name, pod.ca) == ("static_pod", "cp1", "/etc/kubernetes/pki/etcd/ca.crt")
    assert (host.endpoint, host.peer_urls, host.data_dir) == facts == (pod.endpoint, pod.peer_urls, pod.data_dir)


def test_moved_manifest_is_found(tmp_path: Path) -> None:
    """After an interrupted restore the next one finds the member and moves the manifest back."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/etcd.yaml").write_text(KUBEADM, encoding="utf-8")
    known = settings(tmp_path)

    assert restore.move_out(known, "etcd")
    assert not restore.move_out(known, "etcd")
    assert (tmp_path / "manifests.primus-held/etcd.yaml").is_file()
    assert member.find_member(known).name == "cp1"
    assert restore.move_in(known, "etcd")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["etcd.yaml", "manifests"]


def test_incomplete_settings_are_refused(tmp_path: Path) -> None:
    """The error names the missing setting and its file."""
    (tmp_path / "etcd.env").write_text("ETCD_NAME=etcd1\n", encoding="utf-8")

    with pytest.raises(member.RefusedError, match="have no data_dir, endpoint, peer_urls"):
        member.find_member(settings(tmp_path))


def test_valid_snapshot_is_accepted() -> None:
    """Needs the same or a newer etcd release and an odd number of members; files that the backup does not list are ignored."""
    assert restore.refusals(BACKUP, FOUND, WANTED) == []
    assert restore.refusals(BACKUP, {**FOUND, "version": "3.7.0", "identity": {"/pki/ca.crt": "11", "/new": "2"}}, WANTED) == []


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        ({}, {"cluster": "prod"}, "it is of cluster demo, and this is prod"),
        ({"sha256": "bb"}, {}, "it is damaged"),
        ({"revision": 91}, {}, "it is damaged"),
        ({"version": "3.5.30"}, {}, "saved by etcd 3.6.1, and this host would restore it with 3.5.30"),
        ({"identity": {"/pki/ca.crt": "22"}}, {}, "/pki/ca.crt changed since the backup"),
        ({}, {"members": {"m1": "a", "m2": "b"}}, "an even number cannot keep quorum"),
    ],
)
def test_invalid_snapshot_is_refused(found: dict[str, Any], wanted: dict[str, Any], reason: str) -> None:
    """Each reason has a fix."""
    (error,) = restore.refusals(BACKUP, {**FOUND, **found}, {**WANTED, **wanted})

    assert reason in error
    assert "Fix: " in error


def test_changed_keys_can_be_accepted() -> None:
    """After a rotation, the old encryption key may still be listed."""
    found = {**FOUND, "identity": {"/pki/ca.crt": "22"}}

    assert restore.refusals(BACKUP, found, {**WANTED, "ignore_identity": True}) == []


def test_oldest_backups_are_removed() -> None:
    """The newest N stay on the host and the controller. Other files are never removed."""
    names = ["etcd-20260101T000000Z", "etcd-20260103T000000Z", "etcd-20260102T000000Z", "etcd-mine", ".new", ".lock"]

    assert backup.surplus(names, 1) == copies.surplus(names, 1) == ["etcd-20260102T000000Z", "etcd-20260101T000000Z"]
    assert backup.surplus(names, 3) == []


def test_backup_of_an_emptied_etcd_removes_no_full_backup() -> None:
    """Below half the keys of any earlier backup, none is removed. The first backup has no reference."""
    assert [backup.shrunk(49, [10, 100]), backup.shrunk(50, [10, 100]), backup.shrunk(0, [])] == [True, False, False]


def look(revision: int, *, leader: bool = True, errors: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the observation of a member."""
    return {"member": {}, "health": {"revision": revision, "leader": leader, "errors": list(errors)}, "reason": ""}


def test_most_advanced_healthy_member_takes_the_backup() -> None:
    """The PKI comes from a control plane, if that is another host. Unhealthy and failed hosts are skipped."""
    looks = {"e1": look(5), "e2": look(9), "e3": look(99, leader=False), "e4": look(99, errors=("NOSPACE",))}

    assert chosen.kube_backup_hosts(looks, ["cp1", "cp2"], ["e1", "e2", "e3", "e4", "cp2"]) == ["e2", "cp2"]
    assert chosen.kube_backup_hosts(looks, ["e1", "e2"], ["e1", "e2", "e3", "e4"]) == ["e2"]
    assert chosen.kube_backup_hosts(looks, ["cp1"], ["e3", "e4", "cp1"]) == []
    assert "e4: errors ['NOSPACE']" in chosen.kube_backup_reasons(looks)
    assert chosen.kube_backup_reasons({}) == "the group etcd has no host"


def copy(folder: Path, stamp: str, *, data: bytes = b"data", etcd: bool = True) -> Path:
    """Write a copy on the controller."""
    part = folder / f"etcd-{stamp}" / "m1"
    part.mkdir(parents=True)
    record = {"taken": stamp, "host": "m1", "etcd": {"sha256": copies.hashlib.sha256(b"data").hexdigest()} if etcd else None}
    (part / "backup.json").write_text(json.dumps(record), encoding="utf-8")
    (part / "snapshot.db").write_bytes(data)
    return part


def test_newest_copy_with_data_is_selected(tmp_path: Path) -> None:
    """Copies without etcd data are skipped. A name or a folder can be given; invalid ones are refused."""
    older = copy(tmp_path, "20260101T000000Z")
    copy(tmp_path, "20260102T000000Z", etcd=False)

    assert copies.find(tmp_path, "")[0] == older
    assert copies.find(tmp_path, "etcd-20260101T000000Z")[0] == older
    assert copies.find(tmp_path / "nowhere", str(older))[0] == older
    with pytest.raises(ValueError, match="Fix: choose from etcd-20260102T000000Z, etcd-20260101T000000Z"):
        copies.find(tmp_path, "etcd-x")
    with pytest.raises(ValueError, match="no backup of etcd in"):
        copies.find(tmp_path / "nowhere", "")


def test_incomplete_copy_is_not_kept(tmp_path: Path) -> None:
    """It stays a draft, and no earlier copy is removed."""
    copy(tmp_path, "20260101T000000Z")
    copies.begin(tmp_path)
    copy(tmp_path / ".new", "20260102T000000Z", data=b"dat").parent.rename(tmp_path / ".new/x")
    (tmp_path / ".new/x/m1").rename(tmp_path / ".new/m1")

    with pytest.raises(ValueError, match="differs from the file on m1"):
        copies.keep(tmp_path, 1)
    assert copies.find(tmp_path, "")[1]["taken"] == "20260101T000000Z"


def test_verification_reports_age_and_damage(tmp_path: Path) -> None:
    """No backup is skipped; an old or unreadable one fails. Hosts without etcd are skipped."""
    known = settings(tmp_path, folder=str(tmp_path))
    nothing = verify.check_backup(known, 30, 0.0)
    part = tmp_path / "etcd-20260101T000000Z"
    part.mkdir()
    (part / "backup.json").write_text('{"taken": "20260101T000000Z", "etcd": null}', encoding="utf-8")
    taken = verify.calendar.timegm((2026, 1, 1, 0, 0, 0))
    found = [verify.check_backup(known, 30, taken + 3600 * hours) for hours in (29, 31)]
    (part / "backup.json").write_text("{", encoding="utf-8")

    assert [one["verdict"] for one in (nothing, *found, verify.check_backup(known, 30, 0.0))] == ["skipped", "pass", "fail", "fail"]
    assert "31 hours old" in found[1]["reason"]
    assert verify.check_etcd(known, 3)["verdict"] == "skipped"


def test_etcd_needs_leader_alarms_and_members() -> None:
    """A problem with any of the three fails."""
    well = {"leader": True, "errors": [], "members": {"a": "", "b": "", "c": ""}, "revision": 4}
    bad = ({"leader": False}, {"errors": ["NOSPACE"]}, {"members": {"a": ""}})

    assert verify.etcd_verdict("a", well, 3)["verdict"] == "pass"
    assert [verify.etcd_verdict("a", {**well, **one}, 3)["verdict"] for one in bad] == ["fail"] * 3


def voters(alive: str) -> list[Any]:
    """Return members m1, m2, ...; those with a `+` answer. Member n has the address 10.0.0.n."""
    every = enumerate(alive, 1)
    return [quorum.Voter(f"m{n}", (f"https://10.0.0.{n}:2379", f"https://10.0.0.{n}:2380"), sign == "+") for n, sign in every]


@pytest.mark.parametrize(
    ("alive", "leaving", "expected"),
    [
        ("+++", "m3", ""),
        ("++-", "m3", ""),  # The dead member.
        ("++-", "10.0.0.3", ""),
        ("++-", "m2", "without m2 etcd has 2 members, of which 1 answer (lost: m3): no majority"),
        ("+--", "m3", "1 of 3 members of etcd answer, which is no majority"),
        ("+++--", "m5", ""),
        ("+++--", "m1", "without m1 etcd has 4 members, of which 2 answer (lost: m4, m5)"),
        ("++", "m2", ""),
        ("+-", "m2", "1 of 2 members of etcd answer"),
        ("+", "m1", "is the only member of etcd"),
        ("+++", "gpu7", ""),  # Not a member.
        ("+++", "10.0.0", ""),
        ("+++", "", ""),
    ],
)
def test_removal_that_breaks_the_quorum_is_refused(alive: str, leaving: str, expected: str) -> None:
    """Answering members must be a majority before and after. A host that is no member may be removed."""
    error = quorum.removal_refusal(voters(alive), [leaving, ""])

    assert bool(error) == bool(expected), error
    assert expected in error
    assert not error or "Fix: " in error


@pytest.mark.parametrize(
    ("alive", "away", "expected"),
    [
        ("+++", "m3", ""),
        ("+-+", "m3", "while m3 is down 1 of 3 members of etcd answer, which is no majority (lost: m2)"),
        ("++-", "m3", ""),  # The lost member itself; no other one may leave.
        ("+++--", "m1", "while m1 is down 2 of 5 members of etcd answer"),
        ("++++-", "m1", ""),
        ("+", "m1", ""),  # No alternative exists.
    ],
)
def test_reboot_that_breaks_the_quorum_is_refused(alive: str, away: str, expected: str) -> None:
    """A rebooting member still counts, so the other answering members must be a majority of all."""
    error = quorum.reboot_refusal(voters(alive), [away])

    assert bool(error) == bool(expected), error
    assert expected in error
    assert not error or "Fix: " in error


def test_unresponsive_member_may_be_rebooted(tmp_path: Path) -> None:
    """A reboot may repair it; it cannot list the other members."""
    assert quorum.check_reboot(settings(tmp_path)) == ""


def test_member_is_found_by_its_ipv6_address() -> None:
    """Brackets and port are ignored."""
    assert quorum.is_named(quorum.Voter("x", ("https://[fd00::1]:2380",), answers=True), ["fd00::1"])


def test_programs_import_siblings_by_path() -> None:
    """Hosts start them by path, without a package."""
    needed = {"etcd_member", "etcd_backup"}

    assert needed <= set(sys.modules)
    assert {path.stem for path in (ROLE / "files").glob("*.py")} == {*needed, "etcd_restore", "etcd_verify", "etcd_quorum", "etcd_serves"}


@pytest.mark.parametrize(
    ("options", "server"),
    [
        ("    - --secure-port=6443\n    - '--bind-address=::'\n", "https://127.0.0.1:6443"),
        ("    - --bind-address=0.0.0.0\n    - --secure-port=8443\n", "https://127.0.0.1:8443"),
        ("    - --bind-address=10.0.0.1\n", "https://10.0.0.1:6443"),
        ("    - --bind-address=fd00::1\n", "https://[fd00::1]:6443"),
        ("    - --advertise-address=10.0.0.1\n", "https://127.0.0.1:6443"),
    ],
)
def test_host_finds_its_own_api_server(options: str, server: str) -> None:
    """The manifest contains port and address. Certificate renewal uses the same server."""
    manifest = f"spec:\n  containers:\n  - command:\n    - kube-apiserver\n{options}"

    assert member.own_server(manifest) == server
    assert certificates.kube_certificates_server(manifest) == server
