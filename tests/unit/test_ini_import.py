"""`import` converts an INI inventory to hosts.yaml and reports every change."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_bootstrap.core.errors import InventoryError, PlanError
from primus_bootstrap.inventory.ini.conversion import import_ini, write_import

DATA = Path(__file__).parents[1] / "data" / "import"


def imported(folder: Path, text: str) -> tuple[Any, str, str]:
    """Import an INI text; return the parsed result, its text, and all changes as one text."""
    source = folder / "hosts.ini"
    source.write_text(text)
    result = import_ini(source)
    return yaml.safe_load(result.text), result.text, "\n".join(f"{change.line}: {change.what}" for change in result.changes)


@pytest.mark.parametrize("name", ["kubespray", "kubespray_old", "deepops"])
def test_result_is_the_expected_file(name: str) -> None:
    """Inventories like those of Kubespray and DeepOps give the hosts.yaml and the changes in tests/data/import."""
    result = import_ini(DATA / f"{name}.ini")
    changes = "".join(f"{change.line}: {change.what}\n" for change in result.changes)

    assert result.text == (DATA / f"{name}.yaml").read_text()
    assert changes == (DATA / f"{name}.changes").read_text()


def test_groups_with_the_same_new_name_are_merged(tmp_path: Path) -> None:
    """The merged group has all hosts and is not its own child."""
    data, _, changes = imported(tmp_path, "[kube-master]\na\n[kube_control_plane]\nb\n[kube_control_plane:children]\nkube-master\n")

    assert data["all"]["children"] == {"kube_control_plane": {"hosts": {"a": None, "b": None}}}
    assert "1: group kube-master is now kube_control_plane" in changes


def test_unknown_variable_gets_the_site_prefix(tmp_path: Path) -> None:
    """An unknown variable gets the prefix `site_`, also in templates."""
    data, _, changes = imported(tmp_path, "[gpu_node]\na my-rack=r1\n[gpu_node:vars]\nplace=x\nwhere=in {{ place }}\n")

    assert data["all"]["children"]["gpu_node"] == {
        "hosts": {"a": {"site_my_rack": "r1"}},
        "vars": {"site_place": "x", "site_where": "in {{ site_place }}"},
    }
    assert "4: variable place is now site_place: no role, Kubespray or Ansible setting has that name" in changes


def test_misspelt_variable_is_kept(tmp_path: Path) -> None:
    """A name that is similar to a known one is kept, and the change suggests the known one."""
    data, _, changes = imported(tmp_path, "[kube_node]\na\n[kube_node:vars]\nkube_pods_subnets=10.0.0.0/16\n")

    assert data["all"]["children"]["kube_node"]["vars"] == {"kube_pods_subnets": "10.0.0.0/16"}
    assert "did you mean kube_pods_subnet?" in changes


@pytest.mark.parametrize("name", ["ansible_ssh_pass", "ansible_become_pass", "ansible_password", "my_api_token", "harbor_admin_password"])
def test_secret_is_not_copied(tmp_path: Path, name: str) -> None:
    """A secret in plain text is replaced with a comment; the change has the `ansible-vault` command."""
    _, text, changes = imported(tmp_path, f"# {name}=hunter2\n[gpu_node]\na {name}=hunter2 ansible_port=22\n[all:vars]\n{name}=hunter2\n")

    assert "hunter2" not in text + changes
    assert text.count("a secret, not copied") == 2
    assert "ansible-vault create host_vars/a/vault.yml" in changes


def test_secret_by_reference_is_copied(tmp_path: Path) -> None:
    """A template that looks a secret up is copied."""
    data, _, _ = imported(tmp_path, "[gpu_node]\na\n[gpu_node:vars]\nansible_password={{ lookup('env', 'PW') }}\n")

    assert data["all"]["children"]["gpu_node"]["vars"] == {"ansible_password": "{{ lookup('env', 'PW') }}"}


def test_values_are_converted_to_yaml_types(tmp_path: Path) -> None:
    """1.30 becomes a string and true a boolean; other values keep Ansible's type."""
    values = "kube_version=1.30\nhelm_enabled=true\nkubelet_max_pods=110\nnode_taints=['a=b:NoSchedule']\nbin_dir='yes'\n"
    data, _, changes = imported(tmp_path, f"[kube_node]\na\n[kube_node:vars]\n{values}")

    assert data["all"]["children"]["kube_node"]["vars"] == {
        "kube_version": "1.30",
        "helm_enabled": True,
        "kubelet_max_pods": 110,
        "node_taints": ["a=b:NoSchedule"],
        "bin_dir": "yes",
    }
    assert "4: kube_version=1.30: Ansible read the number 1.3; now the string '1.30'" in changes
    assert "5: helm_enabled=true: Ansible read a string; now the boolean true" in changes


def test_ports_ranges_and_quotes(tmp_path: Path) -> None:
    """A port becomes ansible_port, ranges are kept, and quoted values keep spaces and number signs."""
    data, text, _ = imported(tmp_path, "[gpu_node]\ngpu[01:04]:2222 site_a='x # y' # note\n1001\n")

    assert data["all"]["children"]["gpu_node"]["hosts"] == {"gpu[01:04]": {"ansible_port": 2222, "site_a": "x # y"}, "1001": None}
    assert "  # note\n" in text


def test_last_value_of_a_host_variable_is_kept(tmp_path: Path) -> None:
    """Only the value that Ansible used for the INI file is written."""
    data, _, changes = imported(tmp_path, "[all]\na ansible_port=1 ansible_user=u\n[gpu_node]\na ansible_port=2\n")

    assert data["all"]["hosts"] == {"a": {"ansible_user": "u"}}
    assert data["all"]["children"]["gpu_node"]["hosts"] == {"a": {"ansible_port": 2}}
    assert "2: ansible_port of a is not copied from this line: line 4 overrides it" in changes


def test_duplicate_hosts_of_a_group_are_merged(tmp_path: Path) -> None:
    """The second line of a host is merged into the first one."""
    data, _, changes = imported(tmp_path, "[gpu_node]\na ansible_port=1\nb\na ansible_user=u\n")

    assert data["all"]["children"]["gpu_node"]["hosts"] == {"a": {"ansible_port": 1, "ansible_user": "u"}, "b": None}
    assert "4: a is twice in gpu_node; the two entries are merged" in changes


def test_hosts_above_every_header_are_kept(tmp_path: Path) -> None:
    """Hosts without a group and those of [ungrouped] become hosts of `all`."""
    data, _, _ = imported(tmp_path, "a\n[gpu_node]\nb\n[ungrouped]\nc\n")

    assert list(data["all"]["hosts"]) == ["a", "c"]


def test_group_vars_of_renamed_groups_are_reported(tmp_path: Path) -> None:
    """A change says how to rename the folder."""
    (tmp_path / "group_vars" / "k8s-cluster").mkdir(parents=True)
    _, _, changes = imported(tmp_path, "[kube-node]\na\n[k8s-cluster:children]\nkube-node\n")

    assert "group_vars/k8s-cluster is no longer read: rename it to group_vars/k8s_cluster" in changes


def test_invalid_ini_is_reported_with_its_line(tmp_path: Path) -> None:
    """The problem has the line and Ansible's reason."""
    with pytest.raises(InventoryError) as caught:
        imported(tmp_path, "[gpu_node]\na\n\n[gpu_node:vars]\nnot an assignment\n")

    assert caught.value.problems[0].line == 5
    assert "Expected key=value" in caught.value.problems[0].what


def test_group_that_is_its_own_child_is_reported(tmp_path: Path) -> None:
    """Ansible raises a plain Exception for such a group."""
    with pytest.raises(InventoryError) as caught:
        imported(tmp_path, "[kube-node:children]\nkube-node  # twice\n")

    assert (caught.value.problems[0].line, caught.value.problems[0].what) == (2, "group kube-node is its own child")


def test_ipv6_address_loses_its_brackets(tmp_path: Path) -> None:
    """YAML inventories read brackets as a range."""
    data, _, _ = imported(tmp_path, "[gpu_node]\n[2001:db8::1]:2222\n")

    assert data["all"]["children"]["gpu_node"]["hosts"] == {"2001:db8::1": {"ansible_port": 2222}}


HOSTS = ["h1", "h2 site_x=1", "h1 site_x=2 # note", "2001:db8::1", "h9 site_p=a=b site_o=0x1F", "true", "1e3", "h3 site_y='q w'"]
VALUES = [
    "site_k=v",
    "site_l={'a': [1, 2.5]}",
    "site_m=True",
    'site_q="it\'s"',
    "site_h=a # b",
    "site_t={{ site_k }}",
    "site_d=2024-01-01",
    "site_k=w",
]
CHILDREN = ["gpu_node", "a_group", "b_group"]
COMMENTS = ["# c", "", "; d"]
SECTIONS = {"": HOSTS + COMMENTS, "vars": VALUES + COMMENTS, "children": [*CHILDREN, *COMMENTS]}


@st.composite
def inventories(draw: st.DrawFn) -> str:
    """Draw an INI inventory from typical lines; every group exists."""
    lines = draw(st.lists(st.sampled_from(HOSTS), max_size=3))
    for group in draw(st.lists(st.sampled_from(["all", "ungrouped", *CHILDREN]), max_size=6)):
        kind = draw(st.sampled_from(sorted(SECTIONS))) if group not in ("ungrouped", "all") else ""
        lines += [f"[{group}:{kind}]" if kind else f"[{group}]", *draw(st.lists(st.sampled_from(SECTIONS[kind]), max_size=4))]
    return "\n".join([*lines, *(f"[{group}]" for group in CHILDREN)])


def parsed(path: Path, plugin: str) -> tuple[Any, ...]:
    """Return the hosts with variables, and the groups with hosts, children and variables, as Ansible reads them."""
    data = InventoryData()
    inventory_loader.get(plugin).parse(data, DataLoader(), str(path))
    data.reconcile_inventory()
    hosts = {
        name: {key: value for key, value in host.vars.items() if not key.startswith("inventory_")} for name, host in data.hosts.items()
    }
    members = {name: [host.name for host in data.groups[name].hosts] for name in CHILDREN}
    children = {name: sorted(group.name for group in data.groups[name].child_groups) for name in CHILDREN}
    return hosts, members, children, {name: dict(group.vars) for name, group in data.groups.items()}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=inventories())
def test_ansible_reads_the_same_from_any_imported_inventory(text: str) -> None:
    """Ansible reads the same from the INI file and from hosts.yaml. A file that it rejects raises an InventoryError."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "hosts.ini", Path(folder) / "hosts.yaml"
        source.write_text(text)
        try:
            write_import(import_ini(source), target)
        except InventoryError:
            return

        assert parsed(target, "yaml") == parsed(source, "ini")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """A missing file raises an InventoryError."""
    with pytest.raises(InventoryError) as caught:
        import_ini(tmp_path / "none.ini")

    assert "No such file" in caught.value.problems[0].what


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """An existing hosts.yaml is an error."""
    target = tmp_path / "hosts.yaml"
    target.write_text("mine")
    with pytest.raises(PlanError):
        write_import(import_ini(DATA / "kubespray.ini"), target)

    assert target.read_text() == "mine"


def test_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    """Nothing is guessed about the encoding. A byte order mark is accepted."""
    path = tmp_path / "hosts.ini"
    path.write_bytes(b"[all]\nnode1 note=Gr\xfc\xdfe\n")
    with pytest.raises(InventoryError) as caught:
        import_ini(path)
    path.write_bytes("\ufeff[gpu_node]\nn1\n".encode())

    assert [(problem.line, problem.what) for problem in caught.value.problems] == [(2, "is not UTF-8")]
    assert "gpu_node" in import_ini(path).text


def test_renamed_variable_in_group_vars_is_named_with_its_line(tmp_path: Path) -> None:
    """A template in group_vars or host_vars that uses a renamed variable is a problem; comments do not count."""
    folder = tmp_path / "group_vars" / "all"
    folder.mkdir(parents=True)
    (folder / "net.yml").write_text("# my_net was here\nkube_pods_subnet: '{{ my_net }}'\nother: my_network\n")
    (tmp_path / "hosts.ini").write_text("[gpu_node]\nn1\n[all:vars]\nmy_net=10.9.0.0/16\n")

    (problem,) = import_ini(tmp_path / "hosts.ini").problems

    assert (problem.file, problem.line) == (str(folder / "net.yml"), 2)
    assert (problem.what, problem.fix) == ("uses my_net, which is now site_my_net", "rename it to site_my_net")


@pytest.mark.parametrize(
    ("content", "what", "fix"),
    [
        ("[gpu_node]\nmünchen\n".encode("utf-16"), "is not UTF-8", "iconv -f UTF-16 -t UTF-8"),
        (b"\xfe\xff" + "[gpu_node]\nn1\n".encode("utf-16-be"), "is not UTF-8", "iconv -f UTF-16 -t UTF-8"),
        (b"\x7fELF\x02\x01\x00\xff", "is not a text file", "name the INI inventory"),
    ],
)
def test_encoding_is_named_by_the_byte_order_mark(tmp_path: Path, content: bytes, what: str, fix: str) -> None:
    """The fix converts UTF-16 from UTF-16, and binary data is not converted."""
    path = tmp_path / "hosts.ini"
    path.write_bytes(content)
    with pytest.raises(InventoryError) as caught:
        import_ini(path)

    (problem,) = caught.value.problems
    assert problem.what == what
    assert fix in problem.fix


def test_ansible_prints_no_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ansible warns about a name that the import replaces."""
    data, _, _ = imported(tmp_path, "[gpu_node]\nn1 my-bad=3\n")

    assert data["all"]["children"]["gpu_node"]["hosts"] == {"n1": {"site_my_bad": 3}}
    assert capsys.readouterr().err == ""
