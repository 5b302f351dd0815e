"""Role `registry_trust`, containerd: hosts.toml files, config_path, foreign files and verdicts."""

from __future__ import annotations

import base64
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import EndedError, FakeModule, load_role_module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KEEPS: Any = load_role_module("registry_trust", "registry_containerd")
EFFECTS: Any = load_role_module("registry_trust", "registry_trust_effects")
ASKS = EFFECTS.registry_trust_containerd
FOLDER = "/etc/containerd/certs.d"
DEBIAN = 'version = 2\n\n[plugins]\n  [plugins."io.containerd.grpc.v1.cri".cni]\n    bin_dir = "/usr/lib/cni"\n'
OWN = {"address": "svc1:5000", "pem": "PEM\n", "username": "cluster", "password": "secret"}


def test_hosts_toml_repeats_root_settings_in_its_table() -> None:
    """Some releases read only one of the two and try both; each needs authority and credentials."""
    got = tomllib.loads(KEEPS.hosts_toml("svc1:5000", "/ca.crt", "u", 'p"\\'))
    table = got["host"]["https://svc1:5000"]
    login = "Basic " + base64.b64encode(b'u:p"\\').decode()

    assert got["server"] == "https://svc1:5000"
    assert (got["ca"], got["header"]) == (table["ca"], table["header"]) == (["/ca.crt"], {"Authorization": [login]})
    assert set(tomllib.loads(KEEPS.hosts_toml("a", "", "", ""))) == {"server", "capabilities", "host"}


@pytest.mark.parametrize(
    ("there", "table"),
    [
        (DEBIAN, "io.containerd.grpc.v1.cri"),
        ("", "io.containerd.grpc.v1.cri"),
        ('version = 3\n[plugins."io.containerd.cri.v1.images".registry]\n  config_path = ""\n', "io.containerd.cri.v1.images"),
        (
            'version = 3\n[plugins."io.containerd.transfer.v1.local"]\n  config_path = "/etc/containerd/certs.d"\n',
            "io.containerd.cri.v1.images",
        ),
    ],
)
def test_config_path_is_set_once(there: str, table: str) -> None:
    """It is added to the CRI table, which is created if missing. Same keys of other plugins stay."""
    got = KEEPS.with_folder(there, FOLDER)
    read = tomllib.loads(got)

    assert read["plugins"][table]["registry"] == {"config_path": FOLDER}
    assert KEEPS.folder_read(got) == [FOLDER]
    assert KEEPS.with_folder(got, FOLDER) == got
    assert all(line in got for line in there.splitlines() if 'config_path = ""' not in line)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (
            DEBIAN + '[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]\n  endpoint = []\n',
            "cannot be combined with config_path",
        ),
        ('[plugins.cri]\n  x = "y"\n', "its version is 1"),
        ("version = 9\n", "its version is 9"),
    ],
)
def test_unsupported_configuration_is_refused(there: str, why: str) -> None:
    """The error has a fix; containerd would not start with the file."""
    with pytest.raises(KEEPS.RefusedError, match=f"{why}.*Fix: "):
        KEEPS.with_folder(there, FOLDER)


@pytest.mark.parametrize(
    ("dumped", "folders"),
    [
        ('[plugins]\n  [plugins."io.containerd.grpc.v1.cri".registry]\n    config_path = ""\n', []),
        ("[plugins]\n  [plugins.'io.containerd.cri.v1.images'.registry]\n    config_path = '/a:/b'\n", ["/a", "/b"]),
        ("[plugins]\n  [plugins.'io.containerd.transfer.v1.local']\n    config_path = '/a'\n", []),
    ],
)
def test_effective_config_path_is_read_from_containerd(dumped: str, folders: list[str]) -> None:
    """Parses `containerd config dump` of 1.x and 2.x; only CRI's setting counts."""
    assert KEEPS.folder_read(dumped) == folders


def keep(root: Path, *registries: dict[str, Any], check: bool = False) -> list[str]:
    """Configure registries; return the messages, without the folder."""
    folder = KEEPS.Folder(root / "certs.d", root / "record", check=check)
    folder.apply(registries)
    return [message.replace(f"{root}/certs.d/", "") for message in folder.messages]


def test_registries_are_added_and_removed(tmp_path: Path) -> None:
    """Repeats change nothing. Our old registries are removed, foreign folders stay; check mode writes nothing."""
    (tmp_path / "certs.d" / "docker.io").mkdir(parents=True)
    (tmp_path / "certs.d" / "docker.io" / "hosts.toml").write_text("theirs", encoding="utf-8")

    assert keep(tmp_path, OWN, check=True) == ["write svc1:5000/ca.crt", "write svc1:5000/hosts.toml"]
    assert not (tmp_path / "record").exists()
    assert keep(tmp_path, OWN) == ["write svc1:5000/ca.crt", "write svc1:5000/hosts.toml"]
    assert keep(tmp_path, OWN) == []
    assert (tmp_path / "certs.d" / "svc1:5000" / "hosts.toml").stat().st_mode & 0o777 == 0o600
    assert keep(tmp_path, {**OWN, "address": "new:5000", "pem": ""}) == [
        "write new:5000/hosts.toml",
        "remove svc1:5000",
    ]
    assert sorted(path.name for path in (tmp_path / "certs.d").iterdir()) == ["docker.io", "new:5000"]


def test_authority_without_a_value_stays(tmp_path: Path) -> None:
    """None keeps and uses the file; an empty text removes it."""
    keep(tmp_path, OWN)
    assert keep(tmp_path, {**OWN, "pem": None}) == []
    assert keep(tmp_path, {**OWN, "pem": ""}) == ["remove svc1:5000/ca.crt", "write svc1:5000/hosts.toml"]


def test_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    """Kubespray's hosts.toml is reported and stays."""
    other = tmp_path / "certs.d" / "svc1:5000" / "hosts.toml"
    other.parent.mkdir(parents=True)
    other.write_text("theirs", encoding="utf-8")

    with pytest.raises(
        KEEPS.RefusedError, match=r"was not written by primus-bootstrap\. Fix: remove it from containerd_registries_mirrors"
    ):
        keep(tmp_path, {**OWN, "address": "first:5000"}, OWN)
    assert other.read_text(encoding="utf-8") == "theirs"
    assert not (tmp_path / "certs.d" / "first:5000").exists()


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("ctr: failed to resolve reference: svc1:5000/primus/verify:absent: not found", "pass"),
        ("x509: certificate signed by unknown authority", "fail"),
        ("pull access denied, authorization failed: no basic auth credentials", "fail"),
        ("dial tcp: connect: connection refused", "unknown"),
    ],
)
def test_only_a_successful_login_passes(monkeypatch: pytest.MonkeyPatch, output: str, verdict: str) -> None:
    """A rejected authority or password fails. No answer is unknown."""
    monkeypatch.setattr(ASKS.shutil, "which", lambda _: None)
    calls: list[Sequence[str]] = []

    def call(words: Sequence[str], _: str = "") -> tuple[int, str]:
        calls.append(words)
        return 1, output

    host = EFFECTS.Host("n1", "svc1:5000", call)
    ASKS.check_cluster_registry(host)

    assert (host.verdicts.records[0]["check"], host.verdicts.records[0]["verdict"]) == ("registry_trust.containerd_pull", verdict)
    assert "--hosts-dir" in calls[0]
    assert verdict == "pass" or host.verdicts.records[0]["fix"]


@pytest.mark.parametrize(
    ("output", "verdict"), [("not found", "pass"), ("401 Unauthorized", "pass"), ("x509: a", "fail"), ("EOF", "unknown")]
)
def test_foreign_registry_must_be_trusted_and_reachable(monkeypatch: pytest.MonkeyPatch, output: str, verdict: str) -> None:
    """A refusal counts as an answer, because rights of the account are unknown."""
    monkeypatch.setattr(ASKS.shutil, "which", lambda _: "/usr/local/bin/crictl")
    host = EFFECTS.Host("n1", "", lambda *_: (1, output))

    ASKS.check_others(host, ["harbor.example.com"])

    assert [one["verdict"] for one in host.verdicts.records] == [verdict]


@pytest.mark.parametrize(
    ("address", "checks"),
    [("", ["containerd_trusts"]), ("svc1:5000", ["containerd_pull", "containerd_refuses_missing_authority", "containerd_trusts"])],
)
def test_a_node_pushes_nothing(monkeypatch: pytest.MonkeyPatch, address: str, checks: list[str]) -> None:
    """A node of Kubernetes has no skopeo; the checks of containerd are all."""
    params = {"host": "n1", "address": address, "others": ["harbor.example.com"], "containerd": True}
    monkeypatch.setattr(EFFECTS, "AnsibleModule", lambda **_: FakeModule(params))
    monkeypatch.setattr(EFFECTS, "run", lambda *_: (1, "not found"))

    with pytest.raises(EndedError) as ended:
        EFFECTS.main()

    assert ended.value.args[0] == "ok"
    assert [one["check"] for one in ended.value.args[1]["verdicts"]] == [f"registry_trust.{check}" for check in checks]
