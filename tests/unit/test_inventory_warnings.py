"""primus_bootstrap.inventory.rules.likely_mistakes: warnings of `validate`, which do not change its exit code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.content import content_root, topologies_dir
from primus_bootstrap.inventory.load import validate
from primus_bootstrap.inventory.rules import likely_mistakes
from primus_bootstrap.inventory.rules.likely_mistakes import is_controller_file
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TEXT = """\
all:
  vars:
    cluster_name: lab
    users_groups_accounts:
    - name: ada
      authorized_keys_file: keys/ada.pub
    - name: bob
      authorized_keys_file: "{{ inventory_dir }}/keys/bob.pub"
    - name: eve
      authorized_keys_file: .primus/lab/ssh/eve.pub
  hosts:
    gpu1: {ansible_host: 10.0.0.1}
    gpu2.example.com:
    known:
    gpu7:
"""


def warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> list[tuple[int, str, str]]:
    """Return line, message and fix of the warnings of an inventory without problems."""
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost known # gpu7\n")
    monkeypatch.setattr(likely_mistakes, "_HOSTS_FILE", tmp_path / "hosts")
    found = validate(path)
    assert found.problems == (), [str(one) for one in found.problems]
    return [(one.line, one.what, one.fix) for one in found.warnings]


def test_missing_file_and_bare_name_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a template, not the state folder, which the program writes, not a name with a dot or in /etc/hosts."""
    found = warnings(tmp_path, monkeypatch, TEXT)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/ada.pub").write_text("ssh-ed25519 AAAA ada\n")
    after = warnings(tmp_path, monkeypatch, TEXT)

    assert found == [
        (6, f"authorized_keys_file: there is no {tmp_path}/keys/ada.pub on this machine", found[0][2]),
        (15, "`gpu7` has no ansible_host, unlike others named gpu, so DNS must know its name", "set ansible_host for gpu7"),
    ]
    assert found[0][2].startswith("write the file before `primus-bootstrap apply hosts.yaml`, or correct the path, which starts at ")
    assert [line for line, _, _ in after] == [15]


def test_a_missing_key_of_ssh_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts would not answer, and the reason would be far from this line."""
    key = "ansible_ssh_private_key_file: keys/id"
    found = warnings(tmp_path, monkeypatch, f"all: {{vars: {{cluster_name: lab, {key}}}, hosts: {{n1: {{ansible_host: 10.0.0.1}}}}}}\n")

    assert [what for _, what, _ in found] == [f"ansible_ssh_private_key_file: there is no {tmp_path}/keys/id on this machine"]


def test_hosts_without_any_address_are_a_site_with_dns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get no warning, also if hosts of another kind have addresses."""
    bare = "all: {vars: {cluster_name: lab}, hosts: {gpu1: , gpu2: }}\n"
    mixed = "all: {vars: {cluster_name: lab}, hosts: {ctl1: {ansible_host: 10.0.0.1}, gpu1: , gpu2: }}\n"

    assert warnings(tmp_path, monkeypatch, bare) == []
    assert warnings(tmp_path, monkeypatch, mixed) == []


def test_a_misspelt_name_is_compared_with_hosts_that_have_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a host of its own for Ansible, which cannot know that it is a mistake."""
    found = warnings(tmp_path, monkeypatch, "all: {vars: {cluster_name: lab}, hosts: {node1: {ansible_host: 10.0.0.1}, ndoe1: }}\n")

    assert [(what, fix) for _, what, fix in found] == [
        ("`ndoe1` has no ansible_host, unlike node1, so DNS must know its name", "did you mean node1? set ansible_host for ndoe1"),
    ]


def test_the_shipped_inventories_and_the_readme_name_no_host_wrongly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hosts are in DNS where they have no address."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (content_root() / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    folders = [file.parent for file in topologies_dir().glob("*/hosts.yaml")]

    assert warnings(tmp_path, monkeypatch, example) == []
    assert [str(one) for folder in folders for one in validate(folder).warnings if "has no ansible_host" in one.what] == []


def test_users_of_slurm_without_an_account_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if the inventory creates accounts: else a directory service has all of them."""
    users = "slurm_users: [{name: adda, accounts: [a]}, {name: ada, accounts: [a]}]"
    values = "cluster_name: lab"
    hosts = "hosts: {n1: {ansible_host: 10.0.0.1}}"
    own = warnings(tmp_path, monkeypatch, f"all: {{vars: {{{values}, {users}, users_groups_accounts: [{{name: ada}}]}}, {hosts}}}\n")
    directory = warnings(tmp_path, monkeypatch, f"all: {{vars: {{{values}, {users}}}, {hosts}}}\n")

    assert [what for _, what, _ in own] == ["slurm_users: no account of users_groups_accounts is named adda"]
    assert own[0][2] == "did you mean ada? add it to users_groups_accounts, unless a directory service has it"
    assert directory == []


def test_files_on_the_controller_are_found_by_their_specification() -> None:
    """Files that people write; not folders, kubeconfigs and results, which a run may create."""
    found = {name for name, option in load_options().items() if is_controller_file(option)}

    assert found >= {"redis_tls_cert_file", "redis_tls_key_file", "juicefs_file", "harbor_tls_cert_file", "bench_policy_file"}
    assert is_controller_file(load_options()["users_groups_accounts"].options["authorized_keys_file"])
    assert not found & {
        "bench_folder",
        "host_certificate_ca_folder",
        "kubernetes_kubeconfig",
        "airgap_bundle",
        "kube_backup_controller_dir",
    }
