"""Loading: paths, names, connections, Vault, and what is left to the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from primus_bootstrap.errors import InventoryError, PlanError
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
PASSWORD = "correct horse"


def _encrypt(text: str, folder: Path, name: str = "") -> str:
    """Return what `ansible-vault` makes of a text; inline with a variable's name."""
    password = folder / "password"
    password.write_text(PASSWORD, encoding="utf-8")
    vault = Path(sys.executable).with_name("ansible-vault")
    arguments = ["encrypt_string", "--stdin-name", name] if name else ["encrypt", "--output", "-", "-"]
    command = [str(vault), *arguments, "--vault-password-file", str(password)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60)
    return str(done.stdout)


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


def test_encrypted_file_waits_without_password(tmp_path: Path) -> None:
    """A file under Vault is deferred, its group's hosts are not asked for required variables, and the rest is judged."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all__vault.yml": _encrypt("site_secret: 42\n", tmp_path)})

    result = validate(folder)

    assert result.problems == ()
    assert [(item.variable, item.origin.file) for item in result.deferred if not item.variable] == [
        ("", str(folder / "group_vars/all/vault.yml"))
    ]


def test_encrypted_file_is_read_with_password(tmp_path: Path) -> None:
    """With the password the file's variables are known, and wrong ones are found on their line without being quoted."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"group_vars__all__vault.yml": _encrypt("site_secret: 42\nbaseline_timezone: [hunter2]\n", tmp_path)}
    )

    problems = find_problems(folder, vault_password_file=tmp_path / "password")

    assert [(problem.line, problem.rule) for problem in problems] == [(2, "type")]
    assert "hunter2" not in str(problems[0])


def test_inline_vault_value_opens_with_password(tmp_path: Path) -> None:
    """A value under Vault is readable with the password, also through another variable's template."""
    folder = write_inventory(
        tmp_path / "site",
        HOSTS,
        **{"group_vars__all.yml": _encrypt("hunter2", tmp_path, "site_secret") + 'site_copy: "{{ site_secret }}!"\n'},
    )

    variables = load_cluster(folder, ask_vault_pass=PASSWORD).view.variables("gpu01")

    assert variables["site_secret"] == "hunter2"
    assert variables["site_copy"] == "hunter2!"


def test_inline_vault_value_fails_only_where_needed(tmp_path: Path) -> None:
    """Without the password everything else works; the value itself names its line and what to give."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"group_vars__all.yml": "site_a: 1\n" + _encrypt("hunter2", tmp_path, "site_secret")}
    )
    cluster = load_cluster(folder)

    assert cluster.connection("gpu01").user == "ops"
    with pytest.raises(InventoryError) as caught:
        cluster.view.variables("gpu01")["site_secret"]
    (problem,) = caught.value.problems
    assert (problem.line, problem.rule) == (2, "vault-password")


@pytest.mark.parametrize("whole", [True, False], ids=["file", "inline"])
def test_wrong_vault_password_is_found_before_the_run(tmp_path: Path, whole: bool) -> None:  # noqa: FBT001 - a parameter
    """A password that opens nothing is a problem with a place, not a failure in the middle of a run."""
    text = _encrypt("site_a: 1\n", tmp_path) if whole else _encrypt("hunter2", tmp_path, "site_secret")
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": text})

    assert [problem.rule for problem in find_problems(folder, ask_vault_pass="wrong")] == ["vault-password"]


def test_missing_vault_password_file_is_named(tmp_path: Path) -> None:
    """A password file that is not there is an error of its own."""
    folder = write_inventory(tmp_path / "site", HOSTS)

    (problem,) = find_problems(folder, vault_password_file=tmp_path / "nowhere")

    assert (problem.file, problem.rule) == (str(tmp_path / "nowhere"), "vault-password")


def test_vault_password_script_is_run(tmp_path: Path) -> None:
    """An executable password file prints the password, as with Ansible."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": _encrypt("site_a: 1\n", tmp_path)})
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\necho '{PASSWORD}'\n", encoding="utf-8")
    script.chmod(0o700)

    assert load_cluster(folder, vault_password_file=script).view.variables("gpu01")["site_a"] == 1


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


def test_address_inside_a_sealed_file_is_left_to_the_run(tmp_path: Path) -> None:
    """A template that needs a variable from a file under Vault is no error as long as the password is missing."""
    files = {
        "group_vars__all__vault.yml": _encrypt("site_net: 10.0.0\n", tmp_path),
        "host_vars__store1.yml": 'ansible_host: "{{ site_net }}.9"\n',
    }
    folder = write_inventory(tmp_path / "site", HOSTS, **files)

    assert find_problems(folder) == ()
    assert load_cluster(folder, ask_vault_pass=PASSWORD).connection("store1").address == "10.0.0.9"
    with pytest.raises(InventoryError) as caught:
        load_cluster(folder).connection("store1")
    assert caught.value.problems[0].rule == "vault-password"


def test_failing_template_of_a_secret_is_not_quoted(tmp_path: Path) -> None:
    """What Ansible says about a template may hold the value, so it is left out for secrets."""
    folder = write_inventory(
        tmp_path / "site", HOSTS, **{"host_vars__gpu01.yml": "ansible_become_password: \"{{ 'hunter2' | int + 'hunter2' }}\"\n"}
    )

    with pytest.raises(InventoryError) as caught:
        load_cluster(folder).view.variables("gpu01")["ansible_become_password"]
    assert "hunter2" not in str(caught.value.problems[0])


@pytest.mark.parametrize("password", ["", " "])
def test_empty_vault_password_is_no_traceback(tmp_path: Path, password: str) -> None:
    """An empty answer to the prompt is a wrong password."""
    folder = write_inventory(tmp_path / "site", HOSTS, **{"group_vars__all.yml": _encrypt("site_a: 1\n", tmp_path)})

    assert [problem.rule for problem in find_problems(folder, ask_vault_pass=password)] == ["vault-password"]


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
    assert [(late.variable, late.origin.line, late.why) for late in result.deferred] == [("ansible_become_password", 1, "under Vault")]
