"""`node add`, `node remove` and `node replace`, up to the first contact with a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from primus_bootstrap import content
from primus_bootstrap.cli.main import app
from primus_bootstrap.core.errors import InventoryError, PlanError, PrimusError, UsageError
from primus_bootstrap.engine.plan import TargetHost, make_plan
from primus_bootstrap.engine.playbooks import load_phases
from primus_bootstrap.inventory.edit.draft import check_draft, disable_host_files, host_files, read_hosts_text, write_draft
from primus_bootstrap.inventory.edit.host_edits import NewHost, host_variables, with_host, without_host
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.rules.day2_nodes import WORKER_GROUPS, inherited
from primus_bootstrap.inventory.schema.groups import load_groups
from tests.unit.engine_rig import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Groups of Helm charts. Their hosts are also in kube_control_plane, which is listed.
_CHARTS = {
    "kube_gateway_api",
    "kube_cert_manager",
    "kube_prometheus_stack",
    "juicefs_csi",
    "higress",
    "harbor",
    "gpu_operator",
    "jobset",
    "trainer",
    "kueue",
}
CLOSED = free_port()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJvZ3VzLS0tYm9ndXMtLS1ib2d1cy0tLWJvZ3VzLS0t"
CLUSTER = f"""\
all:
  vars:
    cluster_name: small
    ansible_port: {CLOSED}
    ansible_ssh_private_key_file: "{{{{ inventory_dir }}}}/key"
    ansible_ssh_common_args: "-o UserKnownHostsFile={{{{ inventory_dir }}}}/known"
    munge_key: "{{{{ lookup('ansible.builtin.env', 'MUNGE_KEY') }}}}"
    redis_password: "{{{{ lookup('ansible.builtin.env', 'REDIS_PASSWORD') }}}}"
  hosts:
    ctl1: {{ansible_host: 127.0.0.1}}
    kv1: {{ansible_host: 127.0.0.2}}
    kv2: {{ansible_host: 127.0.0.3}}
    gpu[01:04]: {{site_rack: r1}}
    odd9: {{ansible_host: 127.0.0.9, site_rack: r9, site_serial: "77", host_key: {KEY}}}
  children:
    slurm_controller: {{hosts: {{ctl1: }}}}
    redis: {{hosts: {{kv1: , kv2: }}}}
    gpu_node: # where jobs run
      hosts:
        gpu[01:04]:
        odd9:
    slurm_node: {{children: {{gpu_node: }}}}
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Write a cluster whose hosts do not answer; return its hosts.yaml."""
    path = tmp_path / "hosts.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


def node(*words: str | Path) -> str:
    """Run a verb of `node` and return its output; raise its error."""
    done = CliRunner().invoke(app, ["node", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def refused(*words: str | Path) -> PrimusError:
    """Run a verb that fails, and return its error."""
    with pytest.raises((PlanError, UsageError)) as error:
        node(*words)
    return error.value


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["new10", "--groups", "gpu_nod"], "no such group: gpu_nod", "did you mean gpu_node?"),
        (["children", "--groups", "gpu_node"], "`children` cannot be the name of a host", "choose another name"),
        (["new10"], "no group is given", "--like"),
        (["gpu 2", "--groups", "gpu_node"], "`gpu 2` is not a valid host name", "use letters, digits"),
        (["gpu[2:3]", "--groups", "gpu_node"], "`gpu[2:3]` is not a valid host name", "use letters, digits"),
        (["Knoten-ä", "--groups", "gpu_node"], "`Knoten-ä` is not a valid host name", "use letters, digits"),
        (["user@gpu2", "--groups", "gpu_node"], "`user@gpu2` is not a valid host name", "use letters, digits"),
        (["new10", "--groups", "redis"], "other hosts depend on the hosts of", "primus-bootstrap apply"),
        (["new10", "--groups", "gpu_node,slurm_controller"], "other hosts depend on the hosts of", "primus-bootstrap apply"),
        (["new10", "--like", "od9"], "no host od9", "did you mean"),
        (["new10", "--groups", "gpu_node", "--var", "site_x"], "not key=value", "--var name=value"),
        (["odd9", "--groups", "gpu_node", "--host", "127.0.0.8"], "differs in: ansible_host", "--limit odd9"),
        (["odd9", "--groups", "spare"], "differs in: group spare", "--limit odd9"),
        (["new10", "--groups", "gpu_node"], "asks for confirmation", "--yes"),
        (["new10", "new11", "--groups", "gpu_node"], "got 3 arguments", "[hosts.yaml] NAME"),
    ],
)
def test_an_invalid_addition_is_an_error(hosts: Path, words: Sequence[str], what: str, fix: str) -> None:
    """The error has the problem and a fix; hosts.yaml is unchanged."""
    error = refused("add", hosts, *words)

    assert what in error.what
    assert fix in error.fix
    assert hosts.read_text() == CLUSTER


def test_the_edited_file_is_checked_before_it_is_written(hosts: Path) -> None:
    """For an address that another host has, the error has the line of the edited file, and hosts.yaml is unchanged."""
    with pytest.raises(InventoryError) as error:
        node("add", hosts, "new10", "--groups", "gpu_node", "--host", "127.0.0.9", "--yes")

    (problem,) = error.value.problems
    assert (problem.file, problem.line, problem.rule) == (str(hosts), 15, "duplicate-address")
    assert hosts.read_text() == CLUSTER
    assert sorted(path.name for path in hosts.parent.iterdir()) == [".primus", "hosts.yaml"]


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("ctl1", "ctl1 is the only host of slurm_controller", "add another host to slurm_controller"),
        ("kv2", "other hosts depend on kv2: it is in redis", "delete kv2 from redis"),
        ("gpu0", "no host gpu0", "did you mean"),
    ],
)
def test_a_host_that_others_depend_on_cannot_be_removed(hosts: Path, name: str, what: str, fix: str) -> None:
    """The error has the groups and a fix; an unknown name is a typo."""
    error = refused("remove", hosts, name, "--confirm", "small")

    assert what in error.what
    assert fix in error.fix
    assert hosts.read_text() == CLUSTER


def test_a_removal_needs_the_name_of_the_cluster(hosts: Path) -> None:
    """A wrong name is an error, and so is a missing name without a terminal."""
    assert "is small, not other" in refused("remove", hosts, "odd9", "--confirm", "other").what
    assert "--confirm small" in refused("remove", hosts, "odd9").fix
    assert hosts.read_text() == CLUSTER


def test_a_replacement_needs_an_existing_host(hosts: Path) -> None:
    """If hosts.yaml has neither name, the old one is a typo."""
    assert "no host gpu77" in refused("replace", hosts, "gpu77", "gpu78", "--confirm", "small").what


def test_a_reinstalled_server_cannot_be_replaced_by_itself(hosts: Path) -> None:
    """Its data were lost with the old system."""
    assert "its data" in refused("replace", hosts, "kv1", "kv1").what


def test_a_replacement_needs_a_valid_name(hosts: Path) -> None:
    """The name of the new host is checked before hosts.yaml is edited."""
    assert "`vars` cannot be the name of a host" in refused("replace", hosts, "gpu01", "vars").what
    assert hosts.read_text() == CLUSTER


def test_an_inventory_with_another_name_is_not_the_name_of_a_host(hosts: Path) -> None:
    """`node add prod.yaml` has forgotten the name of the host, and does not read hosts.yaml."""
    other = hosts.rename(hosts.with_name("prod.yaml"))

    error = refused("add", other)

    assert error.what == f"{other} is the inventory, and NAME is missing"


def test_the_path_of_hosts_yaml_is_optional(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the cluster, the name of the host is enough."""
    monkeypatch.chdir(hosts.parent)

    assert "the only host of slurm_controller" in refused("remove", "ctl1").what


def test_an_addition_contacts_only_the_new_node_and_the_controllers(hosts: Path) -> None:
    """Every phase has the new node. The phases of Slurm and the bench also have the controllers."""
    after = with_host(CLUSTER, NewHost("new10", ("gpu_node",), {"ansible_host": "127.0.0.10"}))
    cluster = check_draft(read_hosts_text(hosts), after).cluster
    plan = make_plan(cluster, playbook="day2/add_node.yml", target=TargetHost("new10"))
    others = {step.phase: set(step.hosts) - {"new10"} for step in plan.steps}

    assert plan.hosts[0] == "new10"
    assert others.pop("slurm") == others.pop("bench") == {"ctl1"}
    assert others.pop("resume") == others.pop("verify") == {"ctl1"}
    assert set(others) == {"preflight", "baseline", "gpu"}
    assert set().union(*others.values()) == set()


def test_an_addition_without_slurm_contacts_no_controller(hosts: Path) -> None:
    """Phases without work for the new node are omitted."""
    after = with_host(CLUSTER, NewHost("cpu1", ("juicefs_client",), {"ansible_host": "127.0.0.10"}))
    cluster = check_draft(read_hosts_text(hosts), after).cluster
    plan = make_plan(cluster, playbook="day2/add_node.yml", target=TargetHost("cpu1"))

    assert {step.phase for step in plan.steps} >= {"preflight", "baseline", "storage", "verify"}
    assert "slurm" not in {step.phase for step in plan.steps}


def test_a_removal_contacts_only_the_node_and_the_controllers(hosts: Path) -> None:
    """The controllers drain and remove the node, and its services are stopped. A replacement first runs the phases of the new node."""
    cluster = load_cluster(hosts)
    removed = make_plan(cluster, playbook="day2/remove_node.yml", target=TargetHost("odd9"))
    replaced = make_plan(cluster, playbook="day2/replace_node.yml", target=TargetHost("gpu01", "odd9"))

    leaving = [("drain", ("ctl1",)), ("forget", ("ctl1",)), ("stop", ("odd9",))]
    assert [(step.phase, step.hosts) for step in removed.steps] == leaving
    assert [(step.phase, step.hosts) for step in replaced.steps][-3:] == leaving
    assert {step.phase for step in replaced.steps} >= {"preflight", "baseline", "gpu", "slurm", "verify"}


def test_every_play_of_a_phase_is_narrowed_to_one_node_or_is_an_exception() -> None:
    """Any other play would run on all hosts when one node is added."""
    wide = {(phase.name, play.pattern) for phase in load_phases(content.playbooks_dir()) for play in phase.plays if not play.narrowed}

    exceptions = {
        ("baseline", "packet_filter"),
        ("monitoring", "prometheus"),
        ("registry", "oci_registry"),
        ("verify", "prometheus"),
        ("slurm", "slurm_controller"),
        ("slurm", "slurm_login"),
        ("scheduling", "primus_watch"),
        ("bench", "slurm_controller"),
        # These use the API server from the controller and contact no host.
        ("kubernetes", "kube_control_plane[0]"),
        ("registry", "harbor[0]"),
        ("verify", "harbor[0]"),
        ("bench", "kube_control_plane[0]"),
        ("verify", "kube_control_plane[0]"),
    }
    unlisted = wide - {*exceptions, ("verify", "slurm_controller:slurm_login")}
    hint = f"end the pattern of these plays with `{content.NARROWED}`; if their hosts must know a new node, add them to `exceptions`"
    assert unlisted == set(), hint


def _plays(name: str) -> list[dict[str, object]]:
    loaded: list[dict[str, object]] = yaml.safe_load((content.playbooks_dir() / name).read_text(encoding="utf-8"))
    return loaded


def test_playbook_and_verbs_protect_the_same_groups() -> None:
    """The playbook lists the groups that other hosts depend on."""
    listed = _plays("day2/node/leaving.yml")[0]["vars"]["_serving_groups"]  # type: ignore[index]

    serving = {name for names in listed for name in names}

    leaving, rules = "_serving_groups in playbooks/day2/node/leaving.yml", "WORKER_GROUPS in primus_bootstrap/inventory/rules/day2_nodes.py"
    new = set(load_groups()) - WORKER_GROUPS - _CHARTS - serving
    assert new == set(), f"if other hosts depend on the hosts of these groups, add them to {leaving}, else to {rules}"
    assert serving <= set(load_groups()) - WORKER_GROUPS, f"a group is unknown, or in both lists: {leaving}, and {rules}"


@pytest.mark.parametrize(
    ("name", "refusals"),
    [
        ("add_node", ["named", "owned"]),
        ("remove_node", ["named", "owned", "leaving"]),
        ("replace_node", ["named", "owned", "leaving"]),
    ],
)
def test_a_playbook_for_one_node_has_only_imports(name: str, refusals: Sequence[str]) -> None:
    """It has at most 40 lines, and its checks come first. The imported parts contain no `when`."""
    text = (content.playbooks_dir() / "day2" / f"{name}.yml").read_text(encoding="utf-8")
    imports = [play["ansible.builtin.import_playbook"] for play in yaml.safe_load(text)]

    assert len(text.splitlines()) <= 40
    assert imports[: len(refusals)] == [f"node/{part}.yml" for part in refusals]
    for part in (content.playbooks_dir() / "day2" / "node").glob("*.yml"):
        assert len(part.read_text(encoding="utf-8").splitlines()) <= 40, part
        assert "when:" not in part.read_text(encoding="utf-8"), part


def test_a_replacement_inherits_the_variables_of_the_old_host(hosts: Path) -> None:
    """It does not inherit address, host key and serial number of the old machine."""
    assert hosts.exists()
    assert inherited(host_variables(CLUSTER, "odd9")) == {"site_rack": "r9"}


def test_an_encrypted_variable_of_one_host_is_not_copied() -> None:
    """The error tells the operator to move it to a group."""
    text = "a:\n  hosts:\n    n1:\n      redis_password: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        61\n"

    with pytest.raises(PlanError, match="encrypted variables of one host cannot be copied: redis_password"):
        inherited(host_variables(text, "n1"))


def test_line_ends_mode_and_link_of_the_file_are_preserved(hosts: Path, tmp_path: Path) -> None:
    """The file keeps CR LF line ends, the byte order mark, its mode, and the link to it."""
    real = tmp_path / "real.yaml"
    real.write_bytes(b"\xef\xbb\xbf" + CLUSTER.replace("\n", "\r\n").encode())
    real.chmod(0o640)
    hosts.unlink()
    hosts.symlink_to(real)
    file = read_hosts_text(hosts)

    write_draft(check_draft(file, without_host(file.text, "gpu02"), removes=True))

    assert hosts.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.read_bytes() == b"\xef\xbb\xbf" + without_host(CLUSTER, "gpu02").replace("\n", "\r\n").encode()


def test_a_concurrent_edit_is_not_overwritten(hosts: Path) -> None:
    """If the file changed after it was read, the write fails."""
    file = read_hosts_text(hosts)
    draft = check_draft(file, without_host(file.text, "gpu02"))
    hosts.write_text(CLUSTER + "# theirs\n", encoding="utf-8")

    with pytest.raises(PlanError, match="changed by another program"):
        write_draft(draft)

    assert hosts.read_text().endswith("# theirs\n")


@pytest.mark.parametrize(
    ("data", "what"), [(b"$ANSIBLE_VAULT;1.1;AES256\n61\n", "encrypted"), (b"a:\r\n  hosts:\n", "line"), (b"\xff", "UTF-8")]
)
def test_a_file_that_cannot_be_edited_is_an_error(hosts: Path, data: bytes, what: str) -> None:
    """It is encrypted, has two kinds of line ends, or is not text."""
    hosts.write_bytes(data)

    with pytest.raises(PrimusError, match=what):
        read_hosts_text(hosts)


def test_the_variable_files_of_a_removed_host_are_renamed(hosts: Path) -> None:
    """The name of an older copy is not reused, and hosts.yaml without the host is valid."""
    folder = hosts.parent / "host_vars"
    (folder / "odd9").mkdir(parents=True)
    (folder / "odd9" / "a.yml").write_text("site_a: 1\n", encoding="utf-8")
    (folder / "odd9.bak").write_text("older", encoding="utf-8")
    file = read_hosts_text(hosts)
    write_draft(check_draft(file, without_host(file.text, "odd9"), removes=True))

    assert disable_host_files(hosts, "odd9") == (folder / "odd9.1.bak",)
    assert host_files(hosts, "odd9") == ()
    assert "odd9" not in load_cluster(hosts).groups["all"]
