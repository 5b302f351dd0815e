"""Loading an inventory: paths, names, connections, Vault and deferred values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import InventoryError, PlanError, UsageError
from primus_bootstrap.inventory import find_problems, load_cluster, validate
from primus_bootstrap.inventory.cluster import Origin
from tests.unit.inventory_rig import write_inventory

HOSTS = """\
all:
  vars:
    cluster_name: demo
    ansible_user: ops
    ansible_port: "{{ site_port }}"
    site_port: 2222
  children:
    gpu_node:
      hosts:
        gpu[01:03]:
          ansible_host: "10.0.0.{{ inventory_hostname[3:] | int }}"
    spare:
      hosts:
        store1: {ansible_host: 10.0.1.1}
"""


def test_cluster_has_hosts_groups_and_origins(tmp_path: Path) -> None:
    """Hosts are in inventory order, each with its groups and its line."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    cluster = load_cluster(folder)

    assert cluster.name == "demo"
    assert [host.name for host in cluster.hosts] == ["gpu01", "gpu02", "gpu03", "store1"]
    assert cluster.hosts[1].groups == ("gpu_node",)
    assert cluster.hosts[1].origin == Origin(str(folder / "hosts.yaml"), 10)
    assert cluster.groups["all"] == ("gpu01", "gpu02", "gpu03", "store1")
    assert cluster.path == folder / "hosts.yaml"


def test_folder_and_file_load_the_same(tmp_path: Path) -> None:
    """The path may be hosts.yaml or its folder."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    assert load_cluster(folder).hosts == load_cluster(folder / "hosts.yaml").hosts


def test_name_falls_back_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cluster_name the name is that of the folder, also if the path is only `hosts.yaml`."""
    monkeypatch.chdir(write_inventory(tmp_path / "berlin", "gpu_node: {hosts: {n1: }}\n"))

    assert load_cluster(Path("hosts.yaml")).name == "berlin"


def test_problems_show_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems name files relative to the current folder."""
    write_inventory(tmp_path / "site", "gpu_node: {hosts: {n1: }}\n", **{"group_vars__all__main.yml": "colour: red\n"})
    monkeypatch.chdir(tmp_path)

    assert {problem.file for problem in find_problems(Path("site"))} == {"site/group_vars/all/main.yml"}
    monkeypatch.chdir(tmp_path / "site")
    assert {problem.file for problem in find_problems(Path())} == {"group_vars/all/main.yml"}


def test_connection_resolves_templates(tmp_path: Path) -> None:
    """Address, user and port of a connection are resolved from templates."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    connection = cluster.connection("gpu02")

    assert (connection.address, connection.user, connection.port) == ("10.0.0.2", "ops", 2222)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ inventory_dir }}", "{folder}"),
        ("{{ inventory_file }}", "{folder}/hosts.yaml"),
        ("{{ groups['gpu_node'] | join(',') }}", "gpu01,gpu02,gpu03"),
        ("{{ hostvars['store1'].ansible_host }}", "10.0.1.1"),
        ("{{ group_names | join(',') }}", "gpu_node"),
    ],
)
def test_magic_variables_resolve(tmp_path: Path, template: str, expected: str) -> None:
    """Templates can use Ansible's magic variables."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__gpu_node.yml": f'site_x: "{template}"\n'})

    assert load_cluster(folder).view.variables("gpu01")["site_x"] == expected.format(folder=folder)


def test_failing_template_raises_only_when_it_is_read(tmp_path: Path) -> None:
    """A template that needs a fact does not affect other variables. Reading it raises an error with its line."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"host_vars__gpu01.yml": "site_a: 1\nsite_x: \"{{ ansible_facts['kernel'] }}\"\n"})
    variables = load_cluster(folder).view.variables("gpu01")

    assert variables["site_a"] == 1
    with pytest.raises(InventoryError) as caught:
        variables["site_x"]
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(folder / "host_vars" / "gpu01.yml"), 2)


def test_select_accepts_ansible_patterns(tmp_path: Path) -> None:
    """Groups, exclusions, wildcards and slices select the same hosts as in Ansible."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    assert cluster.select("gpu_node:!gpu02") == ("gpu01", "gpu03")
    assert cluster.select("all:&spare") == ("store1",)
    assert cluster.select("gpu0*") == ("gpu01", "gpu02", "gpu03")
    assert cluster.select("gpu_node[0]") == ("gpu01",)
    assert cluster.select("unknown") == ()


def test_invalid_pattern_fails(tmp_path: Path) -> None:
    """An invalid pattern is a UsageError, not an InventoryError."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    with pytest.raises(UsageError):
        cluster.select("~gpu(")


def test_missing_vault_password_file_is_reported(tmp_path: Path) -> None:
    """The problem names the missing password file."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    (problem,) = find_problems(folder, vault_password_file=tmp_path / "missing")

    assert (problem.file, problem.rule) == (str(tmp_path / "missing"), "vault-password")


def test_executable_inventory_is_not_run(tmp_path: Path) -> None:
    """An executable hosts.yaml is read, not executed."""
    folder = write_inventory(tmp_path / "site", HOSTS)
    (folder / "hosts.yaml").chmod(0o755)

    assert load_cluster(folder).name == "demo"


def test_json_inventory_with_tabs_is_read(tmp_path: Path) -> None:
    """Ansible reads JSON with tabs as YAML."""
    folder = write_inventory(tmp_path / "site", '{"gpu_node":\n\t{"hosts": {"n1": {"site_a": "a\\tb"}}}}\n')

    assert load_cluster(folder).view.variables("n1")["site_a"] == "a\tb"


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ansible's warnings are not printed."""
    find_problems(write_inventory(tmp_path / "site", "gpu_node: {hosts: {n1: {a-b: 1}}}\nn1: {hosts: {n1: }}\n"))

    assert capfd.readouterr() == ("", "")


def test_templates_are_deferred(tmp_path: Path) -> None:
    """A template in a role's variable is returned as deferred, with its line."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": 'site_x: a\nbaseline_timezone: "{{ site_x }}"\n'})

    result = validate(folder)

    assert [(item.variable, item.origin.line, item.why) for item in result.deferred] == [("baseline_timezone", 2, "a template")]
    assert result.cluster is not None


def test_loading_twice_reads_new_files(tmp_path: Path) -> None:
    """A group_vars folder that is created between two loads is read, although Ansible caches that it does not exist."""
    folder = write_inventory(tmp_path / "site", HOSTS)
    load_cluster(folder)
    write_inventory(folder, HOSTS, **{"group_vars__all.yml": "site_new: 1\n"})

    assert load_cluster(folder).view.variables("gpu01")["site_new"] == 1


def test_error_of_a_secret_template_does_not_show_its_value(tmp_path: Path) -> None:
    """Ansible's message may contain the value of a template, so it is not shown for secrets."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"host_vars__gpu01.yml": "ansible_become_password: \"{{ 'hunter2' | int + 'hunter2' }}\"\n"}
    )

    with pytest.raises(InventoryError) as caught:
        load_cluster(folder).view.variables("gpu01")["ansible_become_password"]
    assert "hunter2" not in str(caught.value.problems[0])


def test_connection_to_an_unknown_host_fails(tmp_path: Path) -> None:
    """Ansible's implicit localhost is also unknown."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    with pytest.raises(PlanError):
        cluster.connection("gpu99")
    with pytest.raises(PlanError):
        cluster.connection("localhost")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("missing.yaml", "does not exist"),
        ("missing/hosts.yaml", "does not exist"),
        ("pipe", "is not a regular file"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_invalid_path_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, what: str) -> None:
    """The problem names the path as the user gave it."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")

    (problem,) = find_problems(Path(given))

    assert problem.file == given
    assert what in problem.what


def test_linked_file_is_read_in_the_folder_of_the_link(tmp_path: Path) -> None:
    """A link to hosts.yaml uses group_vars/, state and name of the link's folder, as `ansible -i` does."""
    target = write_inventory(tmp_path / "common", "gpu_node: {hosts: {n1: }}\n", **{"group_vars__all.yml": "ansible_user: target\n"})
    folder = tmp_path / "blue"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "group_vars" / "all.yml").write_text("ansible_user: link\n", encoding="utf-8")
    (folder / "hosts.yaml").symlink_to(target / "hosts.yaml")

    for given in (folder, folder / "hosts.yaml"):
        cluster = load_cluster(given)

        assert cluster.path == folder / "hosts.yaml"
        assert cluster.name == "blue"
        assert cluster.state_dir == folder / ".primus" / "blue"
        assert cluster.connection("n1").user == "link"


def test_encrypted_values_without_a_spec_are_deferred(tmp_path: Path) -> None:
    """An encrypted password of Ansible itself is deferred like a secret of a role."""
    hosts = "gpu_node: {hosts: {n1: {ansible_become_password: !vault '$ANSIBLE_VAULT;1.1;AES256 6162'}}}\n"

    result = validate(write_inventory(tmp_path / "site", hosts))

    assert result.problems == ()
    deferred = [(item.variable, item.origin.line, item.why) for item in result.deferred]
    assert deferred == [("ansible_become_password", 1, "encrypted with Vault")]
