"""primus_bootstrap.inventory.job_file: every problem has its line, and later values win."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError, UsageError
from primus_bootstrap.inventory.job_file import check_job, find_job, read_job, whole_job
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = """\
all:
  vars: {workload_user: ada, workload_lost_after_s: 30}
  hosts:
    n1: {ansible_host: 10.0.0.1}
    n2: {ansible_host: 10.0.0.2}
  children:
    primus_watch: {hosts: {n1: }}
    workload_node: {hosts: {n1: , n2: }}
"""
JOB = """\
workload_name: try
workload_nodes: 2
workload_lost_after_s: 40
"""


def problems(path: Path, *extra: str) -> list[tuple[int, str, str]]:
    """Return the problems of a job's file: line, what, fix."""
    with pytest.raises(InventoryError) as caught:
        read_job(path, extra)
    return [(problem.line, problem.what, problem.fix) for problem in caught.value.problems]


def write(folder: Path, text: str) -> Path:
    """Write a job's file."""
    path = folder / "job.yml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line", "what", "fix"),
    [
        (
            "workload_name: try\nworkload_nods: 2\n",
            2,
            "workload_nods: neither a role nor Kubespray nor Ansible has this variable",
            "did you mean workload_nodes?",
        ),
        ("workload_nodes: two\n", 1, "workload_nodes must be a whole number, found `two`", "write a whole number"),
        ("workload_target: slrum\n", 1, "must be one of: auto, direct, slurm, kubernetes; found `slrum`", "did you mean slurm?"),
        ("workload_presets: debug-dense\n", 1, "workload_presets must be a list", "[debug-dense]"),
        ("workload_user: '{{ me }}'\n", 1, "workload_user is a template", "write the value itself"),
        ("baseline_swap: true\nworkload_name: try\n", 1, "baseline_swap", "a job sets workload_ variables"),
        ("- workload_name: try\n", 1, "not a mapping of variables", "name: value"),
        ("workload_name: try\nworkload_name: other\n", 2, "workload_name", ""),
        ("workload_name: [try\n", 0, "", ""),
    ],
)
def test_a_problem_is_reported_with_its_line(tmp_path: Path, text: str, line: int, what: str, fix: str) -> None:
    """A job's file is checked like hosts.yaml."""
    found = problems(write(tmp_path, text))

    assert len(found) == 1, found
    assert what in found[0][1]
    assert fix in found[0][2]
    assert line in (0, found[0][0])


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Those of the file and those of `-e`."""
    found = problems(write(tmp_path, "workload_nods: 2\nworkload_nodes: x\n"), "workload_targt=slurm")

    assert len(found) == 3, found


def test_a_word_of_e_that_is_neither_file_nor_value_is_refused(tmp_path: Path) -> None:
    """`-e 4` is a mistake."""
    with pytest.raises(UsageError, match="neither @FILE nor key=value"):
        read_job(write(tmp_path, JOB), ["4"])


def test_later_values_win_and_have_the_types_of_yaml(tmp_path: Path) -> None:
    """`-e` reads numbers, lists and mappings, and a second file at its place."""
    more = tmp_path / "more.yml"
    more.write_text("workload_nodes: 3\nworkload_venv: /opt/a\n")
    job = read_job(write(tmp_path, JOB), [f"@{more}", "workload_venv=/opt/b", "workload_settings={train: {steps: 7}}", "workload_user="])

    assert job.values["workload_nodes"] == 3
    assert job.values["workload_venv"] == "/opt/b"
    assert job.values["workload_settings"] == {"train": {"steps": 7}}
    assert job.values["workload_user"] == ""


def test_the_job_wins_over_hosts_yaml_and_that_over_the_default(tmp_path: Path) -> None:
    """hosts.yaml has the values that many jobs share."""
    (tmp_path / "hosts.yaml").write_text(CLUSTER)
    cluster = load_cluster(tmp_path / "hosts.yaml")
    job = whole_job(cluster, read_job(write(tmp_path, JOB)))

    assert (job["workload_user"], job["workload_lost_after_s"], job["workload_grace_s"]) == ("ada", 40, 120)


def test_a_job_that_the_cluster_cannot_run_is_refused_with_its_line(tmp_path: Path) -> None:
    """A value that is not in the file is reported with line 0."""
    (tmp_path / "hosts.yaml").write_text(CLUSTER.replace("workload_user: ada, ", ""))
    cluster = load_cluster(tmp_path / "hosts.yaml")
    path = write(tmp_path, JOB.replace("nodes: 2", "nodes: 5"))
    with pytest.raises(InventoryError) as caught:
        check_job(cluster, read_job(path), str(path))

    assert [(problem.file, problem.line, problem.rule) for problem in caught.value.problems] == [
        (str(path), 0, "job"),
        (str(path), 2, "job"),
    ]
    assert "workload_node has 2 hosts" in caught.value.problems[1].what


@pytest.mark.parametrize(
    ("accounts", "fix"),
    [
        ("", "add --user NAME to the command, or set workload_user in the job's file; NAME is an account of users_groups_accounts"),
        (
            "users_groups_accounts: [{name: op, uid: 4100, sudo_rules: [ALL]}, {name: ada, uid: 4101}, {name: ben, uid: 4102}], ",
            "add --user ada (or one of: ben) to the command, or set workload_user in the job's file",
        ),
    ],
)
def test_the_fix_of_a_missing_user_can_be_typed(tmp_path: Path, accounts: str, fix: str) -> None:
    """It is an option of `workload submit`, with the accounts that may have jobs."""
    (tmp_path / "hosts.yaml").write_text(CLUSTER.replace("workload_user: ada, ", accounts))
    path = write(tmp_path, JOB)
    with pytest.raises(InventoryError) as caught:
        check_job(load_cluster(tmp_path / "hosts.yaml"), read_job(path), str(path))

    assert [problem.fix for problem in caught.value.problems] == [fix]


ACCOUNTS = "users_groups_accounts: [{name: op, uid: 4100, sudo_rules: [ALL]}, {name: ada, uid: 4101}, {name: ben, uid: 4102}], "


@pytest.mark.parametrize("user", ["aba", "op"])
def test_a_user_without_an_account_is_refused_before_a_host_is_contacted(tmp_path: Path, user: str) -> None:
    """Administrators may not have jobs either. The problem has the line of the word."""
    (tmp_path / "hosts.yaml").write_text(CLUSTER.replace("workload_user: ada, ", f"{ACCOUNTS}primus_watch_accounts: [zoe], "))
    cluster, path = load_cluster(tmp_path / "hosts.yaml"), write(tmp_path, JOB)
    with pytest.raises(InventoryError) as caught:
        check_job(cluster, read_job(path, [f"workload_user={user}"]), str(path))
    allowed = [check_job(cluster, read_job(path, [f"workload_user={name}"]), str(path)).user for name in ("ben", "zoe")]

    (problem,) = caught.value.problems
    assert problem.what == f"workload_user: {user} is not an account that may have jobs"
    assert problem.fix.endswith("choose from: ada, ben, zoe; or add it to users_groups_accounts and apply the phase baseline")
    assert problem.fix.startswith("did you mean ada? ") is (user == "aba")
    assert allowed == ["ben", "zoe"]


def test_a_user_is_not_checked_against_a_list_that_hosts_yaml_does_not_have(tmp_path: Path) -> None:
    """The role checks it on the host."""
    (tmp_path / "hosts.yaml").write_text(CLUSTER)
    path = write(tmp_path, JOB)

    assert check_job(load_cluster(tmp_path / "hosts.yaml"), read_job(path, ["workload_user=bob"]), str(path)).user == "bob"


def test_a_job_is_checked_against_queues_of_hosts_without_jobs(tmp_path: Path) -> None:
    """The variables of the queues may belong to a control plane that takes no pods."""
    queues = """\
    kueue:
      children: {kube_control_plane: {hosts: {cp1: {ansible_host: 10.0.0.9}}}}
      vars:
        kueue_topology_levels: [primus-bootstrap.io/rack]
        kueue_flavors: [{name: a, model: MI300X}]
        kueue_cluster_queues: [{name: a, quotas: [{flavor: a, resources: {amd.com/gpu: 16}}]}]
        kueue_local_queues: [{name: training, namespace: primus-jobs, cluster_queue: a}]
    etcd: {children: {kube_control_plane: }}
    kube_node: {hosts: {n1: , n2: }, vars: {gpu_env_count: 8, gpu_env_model: MI300X}}
"""
    (tmp_path / "hosts.yaml").write_text(CLUSTER + queues)
    pods = "workload_target: kubernetes\nworkload_kubernetes_image: a/b:1\nworkload_kubernetes_queue: training\n"
    path = write(tmp_path, f"{JOB}{pods}workload_gpus_per_node: 4\n")
    cluster = load_cluster(tmp_path / "hosts.yaml")
    with pytest.raises(InventoryError) as caught:
        check_job(cluster, read_job(path), str(path))

    assert [(problem.line, "two ranks on one node" in problem.what) for problem in caught.value.problems] == [(7, True)]
    assert check_job(cluster, read_job(path, ["workload_gpus_per_node=8"]), str(path))


@pytest.mark.parametrize("id_", ["News1:", "a b", "[x", "7"])
def test_an_option_of_the_command_is_text(tmp_path: Path, id_: str) -> None:
    """The value is not read as YAML. It has precedence over `-e`."""
    job = read_job(write(tmp_path, JOB), ["workload_id=other"], {"--id": id_, "--user": ""})

    assert job.values["workload_id"] == id_
    assert "workload_user" not in job.values


def test_a_problem_of_an_option_names_the_option(tmp_path: Path) -> None:
    """The user did not type `-e workload_id`."""
    with pytest.raises(InventoryError) as caught:
        read_job(write(tmp_path, JOB), (), {"--id": "{{ x }}"})

    assert [(problem.file, problem.line) for problem in caught.value.problems] == [("--id {{ x }}", 0)]


def test_a_word_of_the_command_line_has_no_line(tmp_path: Path) -> None:
    """A mistake in `-e` names the word alone, also without a value."""
    words = ["workload_nodes=two", "workload_nodes="]
    with pytest.raises(InventoryError) as caught:
        read_job(write(tmp_path, JOB), words)

    assert {(problem.file, problem.line) for problem in caught.value.problems} == {(f"-e {word}", 0) for word in words}


def test_an_experiment_of_amd_primus_is_recognised(tmp_path: Path) -> None:
    """The fix converts the file."""
    path = write(tmp_path, "work_group: amd\nmodules: {pre_trainer: {framework: megatron, config: pre_trainer.yaml}}\n")
    with pytest.raises(UsageError) as caught:
        read_job(path)

    assert caught.value.fix == f"primus-cli config convert {path}"


def test_a_shipped_job_is_found_by_its_name(tmp_path: Path) -> None:
    """A path wins over the name of a job in workloads/jobs. For an unknown name the nearest is suggested."""
    assert find_job("debug-dense") == content.jobs_dir() / "debug-dense.yml"
    assert find_job(str(write(tmp_path, JOB))) == tmp_path / "job.yml"
    with pytest.raises(UsageError) as caught:
        find_job("debug-dens")
    assert caught.value.fix == "did you mean debug-dense?"
