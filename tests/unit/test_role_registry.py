"""Roles `oci_registry` and `registry_trust`: password hashes, conflicts, signature policy, credentials and verdicts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import bcrypt
import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content
from tests.role_variables import trusted, variable
from tests.unit.role_module import load_file, load_role_module
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType


def load(role: str, part: str) -> ModuleType:
    """Load a module or filter of a role by path."""
    path = content.roles_dir() / role / part
    return load_file(path, f"test_{role}_{path.stem}")


HASHES = load_file(content.plugins_dir() / "filter" / "web_password.py")
EFFECTS: Any = load_role_module("oci_registry", "oci_registry_effects")
TRUST = load("registry_trust", "filter_plugins/registry_trust.py")
CREDENTIALS = load("registry_trust", "library/registry_credentials.py")
PULLS: Any = load_role_module("registry_trust", "registry_trust_effects")


def test_account_hash_is_stable_and_fast_to_verify() -> None:
    """The registry verifies it with every request. Accounts with the same password have different hashes."""
    first, again, other = (HASHES.web_password_hash("right-password-01", f"n1 registry {name}", 8) for name in ("a", "a", "b"))

    assert first == again != other
    assert first.startswith("$2b$08$")
    assert bcrypt.checkpw(b"right-password-01", first.encode())


def test_settings_of_both_storages_are_complete() -> None:
    """The file and S3 settings use the keys of CNCF Distribution, without empty values."""
    variables = yaml.safe_load((content.roles_dir() / "oci_registry" / "vars" / "main.yml").read_text(encoding="utf-8"))

    assert set(variables["_oci_registry_s3"]) == {"bucket", "region", "regionendpoint", "rootdirectory", "accesskey", "secretkey", "secure"}
    assert variables["_oci_registry_storage_common"]["delete"] == {"enabled": True}
    assert "rejectattr('value', 'equalto', '')" in variables["_oci_registry_storages"]["s3"]["s3"]


STORE = {"oci_registry_object_store_names": ["st1", "10.0.0.1", "object-store"], "oci_registry_object_store_ca_file": "/ca/ca.crt"}


@pytest.mark.parametrize(
    ("endpoint", "more", "source"),
    [
        ("https://object-store:8333", {}, "/ca/ca.crt"),
        ("https://10.0.0.1:8333", {}, "/ca/ca.crt"),
        ("https://s3.example.com", {}, ""),
        ("", {}, ""),
        ("https://object-store:8333", {"oci_registry_storage": "filesystem"}, ""),
        ("https://s3.example.com", {"oci_registry_s3_ca_file": "site.crt"}, "/site/site.crt"),
    ],
)
def test_registry_trusts_the_authority_of_its_s3_endpoint(endpoint: str, more: dict[str, str], source: str) -> None:
    """The cluster's authority for the group object_store, or the site's; a collection of garbage trusts it too."""
    values = {"oci_registry_storage": "s3", "oci_registry_s3_endpoint_url": endpoint, "inventory_dir": "/site", **STORE, **more}
    units = [render("oci_registry", name, item={"readonly": False}, **values) for name in ("docker-registry.service.j2", "gc.service.j2")]

    assert variable("oci_registry", "_oci_registry_s3_ca_source", {"os_family": "Debian", "architecture": "x86_64"}, **values) == source
    assert ["Environment=SSL_CERT_FILE=/etc/docker/registry/s3-ca.crt" in unit for unit in units] == [source != ""] * 2
    assert ("server.pem /etc/systemd/system/docker-registry.service /etc/docker/registry/s3-ca.crt" in units[0]) == (source != "")


def test_playbook_passes_names_and_authority_of_the_object_store() -> None:
    """Without the group there are none."""
    passed = trusted(yaml.safe_load((content.playbooks_dir() / "vars/oci_registry.yml").read_text(encoding="utf-8")))
    hosts = {"st1": {"ansible_host": "10.0.0.1"}, "st2": {"ansible_host": "192.0.2.2", "ip": "10.0.0.2"}}
    known = {"host_certificate_ca_folder": "/site/ca", "hostvars": hosts}
    template = trust_as_template("{{ [oci_registry_object_store_names | sort, oci_registry_object_store_ca_file] }}")
    with_store = Templar(
        loader=DataLoader(), variables={**passed, **known, "groups": {"object_store": ["st1", "st2"], "oci_registry": ["n1"]}}
    )
    without = Templar(loader=DataLoader(), variables={**passed, **known, "groups": {"oci_registry": ["n1"]}})

    assert with_store.template(template) == [
        ["10.0.0.1", "10.0.0.2", "192.0.2.2", "object-store", "st1", "st2"],
        "/site/ca/ca.crt",
    ]
    assert without.template(template) == [[], ""]


class Fake:
    """A registry in memory; the request named by `broken` fails."""

    def __init__(self, broken: str = "") -> None:
        """Start empty."""
        self.kept: dict[str, bytes] = {}
        self.broken = broken

    def __call__(self, method: str, path: str, password: str | None, body: bytes, _: Any) -> Any:  # noqa: PLR0911 (one a kind of request)
        """Answer one request."""
        if password != "right":
            return EFFECTS.Answer(401, {}, b"")
        if self.broken and self.broken == f"{method} {path.split('/')[4] if path.count('/') > 3 else ''}":
            return EFFECTS.Answer(
                500, {}, b'{"errors": [{"code": "UNKNOWN", "message": "unknown error", "detail": "no space left on device"}]}'
            )
        if path == "/v2/":
            return EFFECTS.Answer(200, {}, b"{}")
        if method == "POST":
            return EFFECTS.Answer(202, {"location": "https://any:5000/v2/primus/verify/blobs/uploads/1?_state=x"}, b"")
        name = path.rpartition("digest=")[2] if "digest=" in path else path.rpartition("/")[2]
        if method == "PUT":
            self.kept[name] = body
            return EFFECTS.Answer(201, {}, b"")
        if method == "DELETE":
            self.kept.pop(name)
            return EFFECTS.Answer(202, {}, b"")
        return EFFECTS.Answer(200, {}, self.kept[name]) if name in self.kept else EFFECTS.Answer(404, {}, b"")


def verdicts(registry: Any) -> dict[str, str]:
    """Return the verdict of each check."""
    return {one["check"].partition(".")[2]: one["verdict"] for one in registry.verdicts.records}


def test_healthy_registry_passes_and_open_one_fails() -> None:
    """The right password works, others do not; an image is pushed, pulled and removed."""
    good = EFFECTS.Registry("n1", Fake(), "right")
    EFFECTS.check_access(good)
    EFFECTS.check_images(good, collecting=False)
    open_to_all = EFFECTS.Registry("n1", lambda *_: EFFECTS.Answer(200, {}, b"{}"), "right")
    EFFECTS.check_access(open_to_all)

    assert set(verdicts(good).values()) == {"pass"}
    assert verdicts(open_to_all) == {"takes_password": "pass", "refuses_wrong_password": "fail", "refuses_no_password": "fail"}


def test_full_disk_fails_and_no_answer_is_unknown() -> None:
    """A failed push names its step and cause. A running garbage collection is no failure."""
    full, silent, busy = (
        EFFECTS.Registry("n1", call, "right") for call in (Fake("POST blobs"), lambda *_: EFFECTS.Answer(0, {}, b"no answer"), Fake())
    )
    EFFECTS.check_images(full, collecting=False)
    EFFECTS.check_images(silent, collecting=False)
    EFFECTS.check_images(busy, collecting=True)

    assert verdicts(full) == {"push_and_pull": "fail"}
    assert "push a layer gave 500 UNKNOWN: unknown error no space left on device" in full.verdicts.records[0]["reason"]
    assert verdicts(silent) == verdicts(busy) == {"push_and_pull": "unknown"}


@pytest.mark.parametrize(("ends", "verdict"), [("Jan  1 00:00:00 2031 GMT", "pass"), ("Nov 30 00:00:00 2030 GMT", "fail")])
def test_expiring_certificate_fails(ends: str, verdict: str) -> None:
    """The remaining days are counted from now."""
    registry = EFFECTS.Registry("n1", Fake(), "right")

    talks = EFFECTS.check_certificate(registry, {"notAfter": ends}, 14, EFFECTS.ssl.cert_time_to_seconds("Nov 20 00:00:00 2030 GMT"))

    assert talks
    assert verdicts(registry) == {"certificate": verdict}


def test_disabled_timer_fails_and_no_answer_is_unknown() -> None:
    """The timer must be active and its last run successful."""
    registry = EFFECTS.Registry("n1", Fake(), "right")
    for name, shown in (
        ("a", {"timer": "active", "Result": "success"}),
        ("b", {"timer": "inactive", "Result": "success"}),
        ("c", {}),
        ("d", {"timer": "active", "Result": "timeout"}),
    ):
        EFFECTS.check_timer(registry, f"primus-registry-{name}", shown)

    assert verdicts(registry) == {"a": "pass", "b": "fail", "c": "unknown", "d": "fail"}


def test_policy_rejects_unlisted_images() -> None:
    """Each scope requires its keys or none. The store's own images may be pushed."""
    keys = [{"scope": "r:5000", "type": "sigstore", "path": "/k/1.pub"}, {"scope": "r:5000/g", "type": "gpg", "path": "/k/2.pub"}]

    policy = TRUST.registry_trust_policy(keys, ["docker.io/library"])

    assert policy["default"] == [{"type": "reject"}]
    assert policy["transports"]["docker"]["r:5000"][0]["type"] == "sigstoreSigned"
    assert policy["transports"]["docker"]["r:5000/g"] == [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/k/2.pub"}]
    assert policy["transports"]["docker"]["docker.io/library"] == [{"type": "insecureAcceptAnything"}]
    assert set(policy["transports"]) == {"docker", "containers-storage"}


def test_private_key_is_refused(tmp_path: Path) -> None:
    """The signer's key must not be sent to hosts."""
    (tmp_path / "k").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", encoding="utf-8")

    got = TRUST.registry_trust_file_errors([{"address": "r", "ca_file": "none"}], [{"key_files": ["k", "absent"]}], str(tmp_path))

    assert got == ["none is not a certificate in PEM", "k contains a private key", "absent is not a public key of the type sigstore"]


def test_foreign_logins_stay_and_obsolete_ones_are_removed() -> None:
    """Only our entries change; other settings stay."""
    config = {"auths": {"own:1": {"auth": "old"}, "former:1": {"auth": "x"}, "theirs": {"auth": "y"}}, "psFormat": "z"}

    got = CREDENTIALS.merge(config, [{"address": "own:1", "username": "u", "password": "p"}], ["own:1", "former:1"])

    assert got == {"auths": {"own:1": {"auth": "dTpw"}, "theirs": {"auth": "y"}}, "psFormat": "z"}
    assert CREDENTIALS.merge(got, [{"address": "own:1", "username": "u", "password": "p"}], ["own:1"]) == got
    assert CREDENTIALS.merge({}, [], []) == {}


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, "", "fail"),
        (1, "unauthorized: authentication required", "pass"),
        (1, "no such host", "unknown"),
        (None, "TimeoutError", "unknown"),
    ],
)
def test_refusal_must_have_the_right_reason(status: int | None, output: str, verdict: str) -> None:
    """An unreachable registry proves nothing: unknown."""
    host = PULLS.Host("n1", "r:5000", lambda *_: (status, output))

    host.add_refusal("refuses_wrong_password", "password", (status, output), "fix")

    assert [one["verdict"] for one in host.verdicts.records] == [verdict]


def test_unsigned_image_must_be_refused_under_a_policy(tmp_path: Path) -> None:
    """An accepted image fails. Without a policy the check does not run."""
    calls: list[Sequence[str]] = []

    def call(words: Sequence[str], _: str = "") -> tuple[int, str]:
        calls.append(words)
        return 0, ""

    host = PULLS.Host("n1", "r:5000", call)

    PULLS.check_policy(host, tmp_path, "sha256:1", "signed", [])
    PULLS.check_policy(host, tmp_path, "sha256:1", "keep", [])

    assert [(one["check"], one["verdict"]) for one in host.verdicts.records] == [
        ("registry_trust.refuses_unsigned", "fail"),
        ("registry_trust.refuses_unsigned", "skipped"),
    ]
    assert len(calls) == 1
    assert "--insecure-policy" not in calls[0]


@pytest.mark.parametrize(
    ("installed", "docker", "apptainer"),
    [
        ({"podman", "skopeo"}, "pass", "pass"),
        ({"podman", "dockerd"}, "fail", "pass"),
        ({"podman", "apptainer"}, "pass", "fail"),
        ({"singularity"}, "pass", "fail"),
    ],
)
def test_engine_without_policy_support_fails_if_signatures_are_required(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], docker: str, apptainer: str
) -> None:
    """Docker and Apptainer do not verify signatures. Without a policy they are not checked."""
    monkeypatch.setattr(PULLS.shutil, "which", lambda name: f"/usr/bin/{name}" if name in installed else None)
    signed, kept = (PULLS.Host("n1", "", lambda *_: (0, "")) for _ in range(2))

    PULLS.check_engines(signed, "signed")
    PULLS.check_engines(kept, "keep")

    assert {one["check"]: one["verdict"] for one in signed.verdicts.records} == {
        "registry_trust.policy_of_docker": docker,
        "registry_trust.policy_of_apptainer": apptainer,
    }
    assert not [
        one for one in signed.verdicts.records if one["verdict"] == "fail" and "use podman on this host and remove" not in one["fix"]
    ]
    assert kept.verdicts.records == []


@pytest.mark.parametrize("own", ["r:5000", ""])
def test_engines_are_checked_without_a_registry(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    """A policy may cover other registries only; Apptainer violates it all the same."""
    ended: list[dict[str, Any]] = []

    class Module:
        """A fake AnsibleModule."""

        params: ClassVar[dict[str, Any]] = {
            "host": "n1", "address": own, "username": "u", "others": [], "policy": "signed", "unsigned_from": [own], "other": None,
            "digest": "", "containerd": False,
        }  # fmt: skip

        def __init__(self, **_: Any) -> None:
            """Accept the argument specification."""

        def exit_json(self, **result: Any) -> None:
            """Store the result."""
            ended.append(result)

        fail_json = exit_json

    monkeypatch.setattr(PULLS, "AnsibleModule", Module)
    monkeypatch.setattr(PULLS.shutil, "which", lambda name: name if name == "apptainer" else None)
    monkeypatch.setattr(PULLS, "run", lambda *_: (1, "unauthorized"))

    PULLS.main()

    assert "policy_of_apptainer: Apptainer is installed here" in ended[0]["msg"]


def test_digests_of_the_test_image_are_correct(tmp_path: Path) -> None:
    """The layout names blobs by checksum, so that another host can compare them."""
    digest = PULLS.make_image(tmp_path, "text")
    manifest = json.loads((tmp_path / "blobs" / "sha256" / digest.partition(":")[2]).read_text(encoding="utf-8"))

    assert all(
        (tmp_path / "blobs" / "sha256" / one["digest"].partition(":")[2]).stat().st_size == one["size"]
        for one in [manifest["config"], *manifest["layers"]]
    )
    assert PULLS.make_image(tmp_path, "other") != digest
