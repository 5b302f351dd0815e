"""Role `object_store`: copies, accounts, S3 signatures, verdicts, buckets, metrics, and the unit files."""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
from typing import Any

import pytest
from ansible.plugins.loader import filter_loader

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import FakeModule, load_file, load_role_module, run_module
from tests.unit.test_role_templates import render

filters: Any = load_filters("object_store")
effects: Any = load_role_module("object_store", "object_store_effects")
buckets: Any = load_role_module("object_store", "object_store_buckets")
client: Any = sys.modules["ansible.module_utils.s3_client"]
metrics: Any = load_file(content.roles_dir() / "object_store/files/object_store_metrics.py")

filter_loader.add_directory(str(content.roles_dir() / "object_store/filter_plugins"))  # for render

NODES = ["10.0.0.1:8334", "10.0.0.2:8334", "10.0.0.3:8334"]


@pytest.mark.parametrize(
    ("racks", "code"),
    [
        ([""], "000"),
        (["", "", ""], "001"),
        (["r1", "r1", "r1"], "001"),
        (["r1", "r2", ""], "001"),  # the rack of one host is not known
        (["r1", "r1", "r2"], "001"),  # if the only host of r2 is lost, a copy in another rack has no place
        (["r1", "r1", "r2", "r2"], "010"),
        (["r1", "r2", "r3"], "010"),
    ],
)
def test_copies_are_in_two_racks_if_the_loss_of_a_host_leaves_two(racks: list[str], code: str) -> None:
    """Otherwise on two hosts; one or two hosts keep one copy."""
    assert filters.object_store_replication(racks) == code


def test_an_account_can_use_its_buckets_only() -> None:
    """No account can create or delete buckets: that needs the action Admin."""
    (identity,) = filters.object_store_identities([{"name": "ci", "secret_key": "k" * 20, "buckets": ["a", "b"]}])

    assert identity["credentials"] == [{"accessKey": "ci", "secretKey": "k" * 20}]
    assert identity["actions"] == ["List:a", "Read:a", "Write:a", "Tagging:a", "List:b", "Read:b", "Write:b", "Tagging:b"]


def test_former_keys_are_those_that_no_account_has_any_more() -> None:
    """A secret key that changed without its name cannot be kept beside the new one."""
    known = {
        "identities": filters.object_store_identities([{"name": name, "secret_key": "k" * 20, "buckets": ["a"]} for name in ("one", "two")])
    }
    same = [{"name": "one", "secret_key": "k" * 20}, {"name": "one-2", "secret_key": "n" * 20}]

    assert [identity["name"] for identity in filters.object_store_former(known, same)] == ["two"]
    assert filters.object_store_former({}, same) == []
    assert filters.object_store_changed_secrets(known, same) == []
    assert filters.object_store_changed_secrets(known, [{"name": "two", "secret_key": "n" * 20}]) == ["two"]


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_one_host_or_three_and_more_are_accepted(count: int) -> None:
    """The first three are the masters, so a group of four has a majority as well."""
    assert filters.findings([f"s{number}" for number in range(count)], {}, []) == []


def test_every_setting_of_findings_is_an_option_with_that_default() -> None:
    """A renamed option would not be checked any more."""
    from primus_bootstrap.inventory.schema.specs import load_options  # noqa: PLC0415 - reads all roles

    options = load_options()

    assert {name: options[name].default for name in filters.PORTS} == filters.PORTS
    assert set(filters.VARIABLES) <= set(options)


@pytest.mark.parametrize(
    ("query", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_amazons_examples(query: str, signature: str) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, the examples without a body."""
    keys = client.Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    now = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)

    headers = client.signed_headers("GET", "/", query, b"", "examplebucket.s3.amazonaws.com", keys, now)

    assert headers["authorization"].endswith(f"Signature={signature}")


class FakeStore:
    """A store with one bucket that answers like SeaweedFS 4.48. `open_to` are the keys that it accepts."""

    def __init__(self, open_to: tuple[Any, ...]) -> None:
        """Start empty."""
        self.objects: dict[str, bytes] = {}
        self.open_to, self.address, self.port, self.ca_file = open_to, "10.0.0.1", 8333, "ca.crt"

    def call(self, keys: Any, method: str, path: str, body: bytes = b"", query: str = "") -> Any:
        """Answer a request."""
        if keys not in self.open_to or (path.count("/") == 1 and method == "PUT"):
            return client.Answer(403, b"")
        if method == "PUT":
            self.objects[path] = body
            return client.Answer(200, b"")
        if query:
            return client.Answer(200, "".join(f"<Key>{name.rpartition('/')[2]}</Key>" for name in self.objects).encode())
        return client.Answer(200, self.objects[path]) if path in self.objects else client.Answer(404, b"")


RIGHT = client.Keys("cluster", "k" * 20)


def verdicts_of(records: Any) -> dict[str, str]:
    """Return the verdict of each check."""
    return {record["check"].removeprefix("object_store."): record["verdict"] for record in records.records}


def request_verdicts(store: FakeStore) -> dict[str, str]:
    """Return the verdicts about requests and refusals."""
    records = effects.Verdicts("object_store", "st1")
    effects.check_requests(lambda *words, **more: store.call(RIGHT, *words, **more), records, "b", "st1", b"data")
    effects.check_refusals(store, records, RIGHT, "b", "st1")
    return verdicts_of(records)


def test_a_healthy_store_passes() -> None:
    """It stores the object, lists it, and refuses other keys."""
    assert set(request_verdicts(FakeStore((RIGHT,))).values()) == {"pass"}


def test_a_store_that_accepts_every_key_fails() -> None:
    """Both refusals are checked with a request that the right key may make."""
    wrong = client.Keys("cluster", f"not-{RIGHT.secret_key}")

    found = request_verdicts(FakeStore((RIGHT, wrong, client.Keys("", ""))))

    assert (found["refuses_wrong_key"], found["refuses_no_key"], found["put"]) == ("fail", "fail", "pass")


def test_a_store_that_loses_writes_fails() -> None:
    """An object with other bytes is not the object that was written."""
    store = FakeStore((RIGHT,))
    records = effects.Verdicts("object_store", "st1")

    def call(method: str, path: str, body: bytes = b"", query: str = "") -> Any:
        answer = store.call(RIGHT, method, path, body, query)
        return client.Answer(200, b"other") if method == "GET" and not query else answer

    checksum = effects.check_requests(call, records, "b", "st1", b"data")

    assert verdicts_of(records) == {"put": "pass", "get": "fail", "list": "pass"}
    assert checksum == hashlib.sha256(b"data").hexdigest()


@pytest.mark.parametrize(("after", "verdict"), [(3, "pass"), (1000, "fail")])
def test_an_object_of_another_host_may_arrive_later(after: int, verdict: str) -> None:
    """Names reach other hosts within seconds. Without an object after 30 s, the check fails."""
    answers = iter([client.Answer(404, b"")] * after + [client.Answer(200, b"data")])
    waited: list[float] = []
    records = effects.Verdicts("object_store", "st1")

    expected = hashlib.sha256(b"data").hexdigest()
    effects.check_other(lambda *_: next(answers), records, "b", "st2", expected, waited.append)

    assert verdicts_of(records) == {"get_from_st2": verdict}
    assert sum(waited) == (1.5 if verdict == "pass" else 30)


@pytest.mark.parametrize(
    ("member", "stranger", "verdict"),
    [(b"x", b"", "pass"), (b"x", b"x", "fail"), (b"", b"", "fail"), (None, None, "unknown")],
)
def test_a_port_of_the_group_must_answer_members_only(member: bytes | None, stranger: bytes | None, verdict: str) -> None:
    """SeaweedFS serves gRPC without TLS if it cannot read its certificates; then it answers nobody over TLS."""
    assert effects.port_verdict(member, stranger)[0] == verdict


def volume(number: int, **placement: int) -> dict[str, Any]:
    """Return a volume as /vol/status of SeaweedFS 4.48 shows it."""
    return {"Id": number, "ReplicaPlacement": placement, "Collection": "juicefs"}


class FakeMasters:
    """Three masters, of which some answer."""

    addresses = ("a", "b", "c")

    def __init__(self, answering: int, racks: dict[str, Any], nodes: list[str] = NODES) -> None:
        """Store what they answer."""
        self.answering, self.racks, self.nodes = answering, racks, nodes

    def statuses(self) -> list[dict[str, str]]:
        """Return an answer of each."""
        return [{"Leader": "a"}] * self.answering

    def first(self, path: str) -> dict[str, Any] | None:
        """Return the volumes or the hosts."""
        if not self.answering:
            return None
        rack = {"DataNodes": [{"Url": node} for node in self.nodes]}
        hosts = {"Topology": {"DataCenters": [{"Racks": [rack]}]}}
        return {"Volumes": {"DataCenters": {"dc": self.racks}}} if path == "/vol/status" else hosts


WHOLE = {"r1": {NODES[0]: [volume(1, node=1)], NODES[1]: [volume(1, node=1), volume(2)], NODES[2]: None}}
LOST = {"r1": {NODES[1]: [volume(1, node=1)]}, "r2": {NODES[2]: [volume(3, rack=1)]}}


@pytest.mark.parametrize(
    ("masters", "verdicts"),
    [
        (FakeMasters(3, WHOLE), ("pass", "pass", "pass")),
        (FakeMasters(2, WHOLE), ("fail", "pass", "pass")),
        (FakeMasters(3, LOST, NODES[1:]), ("pass", "fail", "fail")),
    ],
)
def test_a_lost_host_and_missing_copies_are_reported(masters: FakeMasters, verdicts: tuple[str, str, str]) -> None:
    """Volumes 1 and 3 have one copy instead of two after the loss of a host."""
    records = effects.Verdicts("object_store", "st1")
    effects.check_cluster(masters, records, 3)

    assert tuple(verdicts_of(records).values()) == verdicts
    assert all(record["found"] in ("2 volumes lack a copy", "all copies") for record in records.records if "copies" in record["check"])


def test_without_a_master_the_state_is_unknown() -> None:
    """Nothing is known about hosts and copies."""
    records = effects.Verdicts("object_store", "st1")
    effects.check_cluster(FakeMasters(0, {}), records, 3)

    assert verdicts_of(records) == {"masters": "fail", "hosts": "unknown"}


LISTING = "  juicefs\tsize:0\tlogical:0\tchunk:0\n  more\tsize:8\tlogical:8\tchunk:1\n"


@pytest.mark.parametrize(("check", "created"), [(False, ["s3.bucket.list", "s3.bucket.create -name new"]), (True, ["s3.bucket.list"])])
def test_only_missing_buckets_are_created(check: bool, created: list[str]) -> None:  # noqa: FBT001
    """Check mode reports them."""
    ran: list[str] = []

    def shell(command: str) -> str:
        ran.append(command)
        return LISTING if command == "s3.bucket.list" else "create bucket under /buckets\ncreated bucket new\n"

    assert buckets.create_missing(shell, ["juicefs", "new"], check=check) == ["new"]
    assert ran == created


def test_a_store_that_does_not_answer_fails_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module repeats the error of the shell, and where to look."""
    monkeypatch.setattr(buckets, "weed_shell", lambda *_: lambda _: "error: no leader\n")
    monkeypatch.setattr(buckets.time, "monotonic", iter([0.0, 400.0]).__next__)
    fake = FakeModule({"program": "weed", "masters": ["a:1"], "buckets": ["b"], "wait_s": 300})

    end, result = run_module(monkeypatch, buckets, fake)

    assert end == "failed"
    assert result["msg"].startswith("the object store cannot create buckets: error: no leader. Fix: run `journalctl")


MASTER = """SeaweedFS_master_is_leader {leader}
SeaweedFS_master_replica_placement_mismatch{{collection="",id="1"}} 0
SeaweedFS_master_replica_placement_mismatch{{collection="juicefs",id="2"}} 1
"""


@pytest.mark.parametrize(("leader", "missing"), [(1, 1), (0, None)])
def test_only_the_leader_counts_volumes_without_copy(leader: int, missing: int | None) -> None:
    """Other masters do not know, so their metric does not exist."""
    found = metrics.volumes_without_copy(MASTER.format(leader=leader))
    text = metrics.render(up=True, missing=found, disks={"/d": (5, 10)})

    assert found == missing
    assert ("primus_object_store_volumes_without_copy 1\n" in text) == (missing is not None)
    assert 'primus_object_store_free_bytes{folder="/d"} 5\n' in text


GROUP: dict[str, Any] = {
    "object_store_group_hosts": ["n1", "n2", "n3", "n4"],
    "object_store_addresses": ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"],
    "object_store_secret_key": "k" * 20,
    "ip": "10.0.0.1",
    "inventory_dir": "/site",
}


def unit(service: str, **variables: Any) -> str:
    """Return the unit file of a service."""
    facts = {"os_family": "Debian", "architecture": "x86_64"}
    return render("object_store", "service.j2", item=service, **{"ansible_facts": facts, **variables})


def test_the_first_three_hosts_are_the_masters() -> None:
    """The fourth host uses them as well. Each object has two copies."""
    master, filer = unit("master", **GROUP), unit("filer", **{**GROUP, "inventory_hostname": "n4", "ip": "10.0.0.4"})

    assert "-peers=10.0.0.1:9333,10.0.0.2:9333,10.0.0.3:9333 " in master
    assert "-defaultReplication=001 " in master
    assert "-ip=10.0.0.4 " in filer
    assert "-master=10.0.0.1:9333,10.0.0.2:9333,10.0.0.3:9333 " in filer


def test_a_single_host_needs_no_majority() -> None:
    """It keeps one copy of each object."""
    text = unit("master", ip="10.0.0.1", object_store_secret_key="k" * 20, inventory_dir="/site")

    assert "-peers=none " in text
    assert "-defaultReplication=000 " in text


def test_each_disk_and_the_rack_are_passed_to_the_volume_server() -> None:
    """A disk without its mount prevents the start, and gets no data of the root file system."""
    text = unit("volume", **GROUP, object_store_data_dirs=["/d1", "/d2"], object_store_racks=["r1", "r2", "r1", "r2"])

    assert "-dir=/d1,/d2 -max=0,0 " in text
    assert "-rack=r1 " in text
    assert "RequiresMountsFor=/d1 /d2\n" in text
    assert "ReadWritePaths=/d1 /d2\n" in text


def test_no_unit_contains_a_key() -> None:
    """Every account can read unit files and command lines."""
    assert all("k" * 20 not in unit(service, **GROUP) for service in ("master", "volume", "filer"))


def test_every_port_between_hosts_needs_a_certificate_of_the_group() -> None:
    """Without a section for a service, SeaweedFS would serve it without TLS."""
    text = render("object_store", "security.toml.j2", **GROUP)

    for section in ("grpc.master", "grpc.volume", "grpc.filer", "grpc.s3", "https.master", "https.volume", "https.filer"):
        assert f'[{section}]\ncert = "/etc/seaweedfs/tls/group.crt"' in text
    assert "[https.client]\nenabled = true\n" in text


def test_juicefs_uses_the_group_if_nothing_else_is_configured() -> None:
    """A bucket of the site and the group juicefs_store come first. Keys of the group have names with which JuiceFS does not store them."""
    group = {
        "juicefs_object_store_url": "https://object-store:8333/juicefs",
        "juicefs_object_store_access_key": "cluster",
        "juicefs_object_store_secret_key": "k" * 20,
        "juicefs_object_store_ca_file": "/ca.crt",
        "juicefs_redis_address": "10.0.0.1",
        "juicefs_sha256": "0" * 64,
        "inventory_dir": "/site",
    }
    environment = render("juicefs", "secrets.env.j2", **group)
    sftp = render("juicefs", "secrets.env.j2", **group, juicefs_store_address="10.0.0.9", juicefs_store_password="p" * 20)
    site = render("juicefs", "secrets.env.j2", **group, juicefs_bucket="https://s3/x", juicefs_access_key="me", juicefs_secret_key="s" * 20)

    keys = f"AWS_ACCESS_KEY_ID=cluster\nAWS_SECRET_ACCESS_KEY={'k' * 20}\n"
    assert f"{keys}SSL_CERT_FILE=/etc/juicefs/object-store-ca.crt\n" in environment
    assert (f"SECRET_KEY={'p' * 20}\n" in sftp, "SSL_CERT_FILE" in sftp) == (True, False)
    assert (f"ACCESS_KEY=me\nSECRET_KEY={'s' * 20}\n" in site, "SSL_CERT_FILE" in site) == (True, False)
