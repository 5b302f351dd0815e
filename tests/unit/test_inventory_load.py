"""Loading: paths, names, connections, Vault, and what is left to the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import InventoryError, PlanError
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


def test_cluster_holds_hosts_groups_and_places(tmp_path: Path) -> None:
    """Hosts are in inventory order, each with its groups and its line; a group's hosts include those of its children."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    cluster = load_cluster(folder)

    assert cluster.name == "demo"
    assert [host.name for host in cluster.hosts] == ["gpu01", "gpu02", "gpu03", "store1"]
    assert cluster.hosts[1].groups == ("gpu_node",)
    assert cluster.hosts[1].origin == Origin(str(folder / "hosts.yaml"), 10)
    assert cluster.groups["all"] == ("gpu01", "gpu02", "gpu03", "store1")
    assert cluster.path == folder / "hosts.yaml"


def test_folder_and_file_mean_the_same(tmp_path: Path) -> None:
    """The path may be hosts.yaml or the folder that holds it."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    assert load_cluster(folder).hosts == load_cluster(folder / "hosts.yaml").hosts


def test_name_falls_back_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cluster_name the folder's name counts, also where the path is only `hosts.yaml`."""
    monkeypatch.chdir(write_inventory(tmp_path / "berlin", "gpu_node: {hosts: {n1: }}\n"))

    assert load_cluster(Path("hosts.yaml")).name == "berlin"


def test_files_are_shown_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems name files relative to where the user stands."""
    write_inventory(tmp_path / "site", "gpu_node: {hosts: {n1: }}\n", **{"group_vars__all__main.yml": "colour: red\n"})
    monkeypatch.chdir(tmp_path)

    assert {problem.file for problem in find_problems(Path("site"))} == {"site/group_vars/all/main.yml"}
    monkeypatch.chdir(tmp_path / "site")
    assert {problem.file for problem in find_problems(Path())} == {"group_vars/all/main.yml"}


def test_connection_resolves_templates(tmp_path: Path) -> None:
    """A connection's address, user and port come out of templates as in a run."""
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
    """What Ansible adds by itself is there for templates."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__gpu_node.yml": f'site_x: "{template}"\n'})

    assert load_cluster(folder).view.variables("gpu01")["site_x"] == expected.format(folder=folder)


def test_unresolvable_template_fails_only_where_needed(tmp_path: Path) -> None:
    """A template that needs a fact does not keep the other variables from being read; asked for, it names its place."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"host_vars__gpu01.yml": "site_a: 1\nsite_x: \"{{ ansible_facts['kernel'] }}\"\n"})
    variables = load_cluster(folder).view.variables("gpu01")

    assert variables["site_a"] == 1
    with pytest.raises(InventoryError) as caught:
        variables["site_x"]
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(folder / "host_vars" / "gpu01.yml"), 2)


def test_select_takes_ansible_patterns(tmp_path: Path) -> None:
    """Groups, exclusions, wildcards and slices mean what they mean to Ansible."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    assert cluster.select("gpu_node:!gpu02") == ("gpu01", "gpu03")
    assert cluster.select("all:&spare") == ("store1",)
    assert cluster.select("gpu0*") == ("gpu01", "gpu02", "gpu03")
    assert cluster.select("gpu_node[0]") == ("gpu01",)
    assert cluster.select("nobody") == ()


def test_bad_pattern_is_refused(tmp_path: Path) -> None:
    """A pattern that Ansible cannot read is an error of the request, not of hosts.yaml."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    with pytest.raises(PlanError):
        cluster.select("~gpu(")


def test_missing_vault_password_file_is_named(tmp_path: Path) -> None:
    """A password file that is not there is an error of its own."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    (problem,) = find_problems(folder, vault_password_file=tmp_path / "nowhere")

    assert (problem.file, problem.rule) == (str(tmp_path / "nowhere"), "vault-password")


def test_executable_inventory_is_not_run(tmp_path: Path) -> None:
    """An executable hosts.yaml is read, never executed."""
    folder = write_inventory(tmp_path / "site", HOSTS)
    (folder / "hosts.yaml").chmod(0o755)

    assert load_cluster(folder).name == "demo"


def test_json_inventory_with_tabs_is_read(tmp_path: Path) -> None:
    """JSON is YAML to Ansible, tabs included."""
    folder = write_inventory(tmp_path / "site", '{"gpu_node":\n\t{"hosts": {"n1": {"site_a": "a\\tb"}}}}\n')

    assert load_cluster(folder).view.variables("n1")["site_a"] == "a\tb"


def test_nothing_reaches_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ansible's warnings stay off the screen; only the command line prints."""
    find_problems(write_inventory(tmp_path / "site", "gpu_node: {hosts: {n1: {a-b: 1}}}\nn1: {hosts: {n1: }}\n"))

    assert capfd.readouterr() == ("", "")


def test_templates_are_counted_as_deferred(tmp_path: Path) -> None:
    """A template in a role's variable is left to the role's own check, and said so with its place."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": 'site_x: a\nbaseline_timezone: "{{ site_x }}"\n'})

    result = validate(folder)

    assert [(item.variable, item.origin.line, item.why) for item in result.deferred] == [("baseline_timezone", 2, "a template")]
    assert result.cluster is not None


def test_loading_twice_sees_new_files(tmp_path: Path) -> None:
    """A group_vars folder that appears between two loads of one process is seen: Ansible alone would remember that it is not there."""
    folder = write_inventory(tmp_path / "site", HOSTS)
    load_cluster(folder)
    write_inventory(folder, HOSTS, **{"group_vars__all.yml": "site_new: 1\n"})

    assert load_cluster(folder).view.variables("gpu01")["site_new"] == 1


def test_failing_template_of_a_secret_is_not_quoted(tmp_path: Path) -> None:
    """What Ansible says about a template may hold the value, so it is left out for secrets."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"host_vars__gpu01.yml": "ansible_become_password: \"{{ 'hunter2' | int + 'hunter2' }}\"\n"}
    )

    with pytest.raises(InventoryError) as caught:
        load_cluster(folder).view.variables("gpu01")["ansible_become_password"]
    assert "hunter2" not in str(caught.value.problems[0])


def test_host_that_is_not_there(tmp_path: Path) -> None:
    """A connection to nobody is refused, and Ansible's implicit localhost is nobody too."""
    cluster = load_cluster(write_inventory(tmp_path / "site", HOSTS))

    with pytest.raises(PlanError):
        cluster.connection("gpu99")
    with pytest.raises(PlanError):
        cluster.connection("localhost")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("nowhere.yaml", "does not exist"),
        ("nowhere/hosts.yaml", "does not exist"),
        ("pipe", "is not a regular file"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_path_that_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, what: str) -> None:
    """A path that is no file is said to be so, under the name that the user gave."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")

    (problem,) = find_problems(Path(given))

    assert problem.file == given
    assert what in problem.what


def test_linked_file_is_read_in_the_folder_of_the_link(tmp_path: Path) -> None:
    """A link to hosts.yaml has group_vars/, state and name of its own folder, as for `ansible -i`; none of its target's."""
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


def test_vaulted_values_without_a_spec_are_counted_as_deferred(tmp_path: Path) -> None:
    """Ansible's own password under Vault waits for the password like a role's, and is counted with it."""
    hosts = "gpu_node: {hosts: {n1: {ansible_become_password: !vault '$ANSIBLE_VAULT;1.1;AES256 6162'}}}\n"

    result = validate(write_inventory(tmp_path / "site", hosts))

    assert result.problems == ()
    assert [(late.variable, late.origin.line, late.why) for late in result.deferred] == [("ansible_become_password", 1, "encrypted with Vault")]
