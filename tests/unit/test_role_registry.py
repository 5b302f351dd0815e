"""What the roles `oci_registry` and `registry_trust` decide: accounts, contradictions, the policy, credentials, verdicts."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import yaml

from primus_bootstrap import content
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType


def load(role: str, part: str) -> ModuleType:
    """Load a module or filter of a role by its path."""
    path = content.roles_dir() / role / part
    spec = importlib.util.spec_from_file_location(f"test_{role}_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ACCOUNTS = load("oci_registry", "library/oci_registry_accounts.py")
EFFECTS = load("oci_registry", "library/oci_registry_effects.py")
TRUST = load("registry_trust", "filter_plugins/registry_trust.py")
CREDENTIALS = load("registry_trust", "library/registry_credentials.py")
PULLS: Any = load_role_module("registry_trust", "registry_trust_effects")


def test_a_hash_that_fits_stays_and_a_foreign_account_goes() -> None:
    """A second run changes nothing; a new password, a new account and one that is not stated each do, and are said."""
    there = {"a": "$2y$a1", "b": "$2y$b1", "old": "$2y$o", "md5": "$apr1$x"}
    accounts = [{"name": name, "password": f"{name}1"} for name in ("a", "md5")] + [
        {"name": "b", "password": "b2"},
        {"name": "c", "password": "c1"},
    ]

    got, said = ACCOUNTS.plan(there, accounts, lambda _, known, password: known == f"$2y${password}", lambda _, password: f"$2y${password}")

    assert got == {"a": "$2y$a1", "md5": "$2y$md51", "b": "$2y$b2", "c": "$2y$c1"}
    assert said == ["old goes", "md5 gets its password", "b gets its password", "c comes"]


def test_the_settings_of_both_storages_are_whole() -> None:
    """The file and the S3 form name what CNCF Distribution reads, and nothing empty is passed on."""
    variables = yaml.safe_load((content.roles_dir() / "oci_registry" / "vars" / "main.yml").read_text(encoding="utf-8"))

    assert set(variables["_oci_registry_s3"]) == {"bucket", "region", "regionendpoint", "rootdirectory", "accesskey", "secretkey", "secure"}
    assert variables["_oci_registry_storage_common"]["delete"] == {"enabled": True}
    assert "rejectattr('value', 'equalto', '')" in variables["_oci_registry_storages"]["s3"]["s3"]


class Fake:
    """A registry in memory, as its HTTP interface behaves; `broken` names a request that fails."""

    def __init__(self, broken: str = "") -> None:
        """Begin empty."""
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
    """Return verdicts by check."""
    return {one["check"].partition(".")[2]: one["verdict"] for one in registry.verdicts}


def test_a_good_registry_passes_and_an_open_one_fails() -> None:
    """The right password is taken, others are refused, and an image goes in, out and away."""
    good = EFFECTS.Registry("n1", Fake(), "right")
    EFFECTS.look_at_access(good)
    EFFECTS.look_at_images(good, collects=False)
    open_to_all = EFFECTS.Registry("n1", lambda *_: EFFECTS.Answer(200, {}, b"{}"), "right")
    EFFECTS.look_at_access(open_to_all)

    assert set(verdicts(good).values()) == {"pass"}
    assert verdicts(open_to_all) == {"takes_password": "pass", "refuses_wrong_password": "fail", "refuses_no_password": "fail"}


def test_a_full_disk_is_said_in_the_registrys_words_and_silence_is_unknown() -> None:
    """A push that fails names its step and the cause; no answer, and a collection under way, are no failure of the registry."""
    full, silent, busy = (
        EFFECTS.Registry("n1", call, "right") for call in (Fake("POST blobs"), lambda *_: EFFECTS.Answer(0, {}, b"no answer"), Fake())
    )
    EFFECTS.look_at_images(full, collects=False)
    EFFECTS.look_at_images(silent, collects=False)
    EFFECTS.look_at_images(busy, collects=True)

    assert verdicts(full) == {"push_and_pull": "fail"}
    assert "push a layer gave 500 UNKNOWN: unknown error no space left on device" in full.verdicts[0]["reason"]
    assert verdicts(silent) == verdicts(busy) == {"push_and_pull": "unknown"}


@pytest.mark.parametrize(("ends", "verdict"), [("Jan  1 00:00:00 2031 GMT", "pass"), ("Nov 30 00:00:00 2030 GMT", "fail")])
def test_a_certificate_that_ends_soon_fails(ends: str, verdict: str) -> None:
    """The days that are left are counted from now."""
    registry = EFFECTS.Registry("n1", Fake(), "right")

    talks = EFFECTS.look_at_certificate(registry, {"notAfter": ends}, 14, EFFECTS.ssl.cert_time_to_seconds("Nov 20 00:00:00 2030 GMT"))

    assert talks
    assert verdicts(registry) == {"certificate": verdict}


def test_a_timer_that_is_off_or_unknown_is_told_apart() -> None:
    """A timer must run and its last run must have ended well; where systemd says nothing, nothing is known."""
    registry = EFFECTS.Registry("n1", Fake(), "right")
    for name, shown in (
        ("a", {"timer": "active", "Result": "success"}),
        ("b", {"timer": "inactive", "Result": "success"}),
        ("c", {}),
        ("d", {"timer": "active", "Result": "timeout"}),
    ):
        EFFECTS.look_at_timer(registry, f"primus-registry-{name}", shown)

    assert verdicts(registry) == {"a": "pass", "b": "fail", "c": "unknown", "d": "fail"}


def test_the_policy_refuses_what_it_does_not_name() -> None:
    """Scopes ask for their keys, some for none, and the rest is refused; what the store holds may be pushed."""
    keys = [{"scope": "r:5000", "type": "sigstore", "path": "/k/1.pub"}, {"scope": "r:5000/g", "type": "gpg", "path": "/k/2.pub"}]

    policy = TRUST.registry_trust_policy(keys, ["docker.io/library"])

    assert policy["default"] == [{"type": "reject"}]
    assert policy["transports"]["docker"]["r:5000"][0]["type"] == "sigstoreSigned"
    assert policy["transports"]["docker"]["r:5000/g"] == [{"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/k/2.pub"}]
    assert policy["transports"]["docker"]["docker.io/library"] == [{"type": "insecureAcceptAnything"}]
    assert set(policy["transports"]) == {"docker", "containers-storage"}


def test_a_private_key_is_refused(tmp_path: Path) -> None:
    """A key that must stay with who signs is not sent to hosts."""
    (tmp_path / "k").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", encoding="utf-8")

    got = TRUST.registry_trust_missing([{"address": "r", "ca_file": "none"}], [{"key_files": ["k", "absent"]}], str(tmp_path))

    assert got == ["none is no certificate in PEM", "k holds a private key", "absent is no public key of the type sigstore"]


def test_other_peoples_logins_are_kept_and_former_ones_of_ours_go() -> None:
    """Only entries of ours are written or removed; other settings of the file stay."""
    there = {"auths": {"own:1": {"auth": "old"}, "former:1": {"auth": "x"}, "theirs": {"auth": "y"}}, "psFormat": "z"}

    got = CREDENTIALS.merged(there, [{"address": "own:1", "username": "u", "password": "p"}], ["own:1", "former:1"])

    assert got == {"auths": {"own:1": {"auth": "dTpw"}, "theirs": {"auth": "y"}}, "psFormat": "z"}
    assert CREDENTIALS.merged(got, [{"address": "own:1", "username": "u", "password": "p"}], ["own:1"]) == got
    assert CREDENTIALS.merged({}, [], []) == {}


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, "", "fail"),
        (1, "unauthorized: authentication required", "pass"),
        (1, "no such host", "unknown"),
        (None, "TimeoutExpired", "unknown"),
    ],
)
def test_a_refusal_counts_only_for_its_own_reason(status: int | None, said: str, verdict: str) -> None:
    """A registry that cannot be reached refuses nothing: that is unknown."""
    host = PULLS.Host("n1", "r:5000", lambda *_: (status, said))

    host.refusal("refuses_wrong_password", "password", (status, said), "fix")

    assert [one["verdict"] for one in host.verdicts] == [verdict]


def test_an_unsigned_image_must_be_refused_under_a_policy(tmp_path: Path) -> None:
    """One that comes through fails; where any image may run, nothing is tried."""
    calls: list[Sequence[str]] = []

    def call(words: Sequence[str], _: str = "") -> tuple[int, str]:
        calls.append(words)
        return 0, ""

    host = PULLS.Host("n1", "r:5000", call)

    PULLS.look_at_policy(host, tmp_path, "sha256:1", "signed", [])
    PULLS.look_at_policy(host, tmp_path, "sha256:1", "keep", [])

    assert [(one["check"], one["verdict"]) for one in host.verdicts] == [
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
def test_an_engine_without_a_policy_fails_where_only_signed_images_may_run(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], docker: str, apptainer: str
) -> None:
    """Docker and Apptainer pull anything, so a host that has one does not keep the policy; without a policy they are nobody's concern."""
    monkeypatch.setattr(PULLS.shutil, "which", lambda name: f"/usr/bin/{name}" if name in installed else None)
    signed, kept = (PULLS.Host("n1", "", lambda *_: (0, "")) for _ in range(2))

    PULLS.look_at_engines(signed, "signed")
    PULLS.look_at_engines(kept, "keep")

    assert {one["check"]: one["verdict"] for one in signed.verdicts} == {
        "registry_trust.policy_of_docker": docker,
        "registry_trust.policy_of_apptainer": apptainer,
    }
    assert not [one for one in signed.verdicts if one["verdict"] == "fail" and "use podman on this host and remove" not in one["fix"]]
    assert kept.verdicts == []


@pytest.mark.parametrize("own", ["r:5000", ""])
def test_engines_are_judged_whether_or_not_there_is_a_registry(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    """A policy may be about registries of others alone: Apptainer breaks it there just the same."""
    ended: list[dict[str, Any]] = []

    class Module:
        """What Ansible hands the module, and takes from it."""

        params: ClassVar[dict[str, Any]] = {
            "host": "n1", "address": own, "username": "u", "others": [], "policy": "signed", "unsigned_from": [own], "other": None,
            "digest": "",
        }  # fmt: skip

        def __init__(self, **_: Any) -> None:
            """Take the specification of arguments."""

        def exit_json(self, **result: Any) -> None:
            """Keep what it ends with."""
            ended.append(result)

        fail_json = exit_json

    monkeypatch.setattr(PULLS, "AnsibleModule", Module)
    monkeypatch.setattr(PULLS.shutil, "which", lambda name: name if name == "apptainer" else None)
    monkeypatch.setattr(PULLS, "run", lambda *_: (1, "unauthorized"))

    PULLS.main()

    assert "policy_of_apptainer: Apptainer is installed here" in ended[0]["msg"]


def test_the_image_of_the_proof_is_what_its_digest_says(tmp_path: Path) -> None:
    """The layout names blobs by their sums, so that what another host pulls can be compared."""
    digest = PULLS.make_image(tmp_path, "text")
    manifest = json.loads((tmp_path / "blobs" / "sha256" / digest.partition(":")[2]).read_text(encoding="utf-8"))

    assert all(
        (tmp_path / "blobs" / "sha256" / one["digest"].partition(":")[2]).stat().st_size == one["size"]
        for one in [manifest["config"], *manifest["layers"]]
    )
    assert PULLS.make_image(tmp_path, "other") != digest
