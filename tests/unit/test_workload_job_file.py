"""A job's file, read as hosts.yaml is: every problem with its line, and values in the order in which they win."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError, PlanError
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
    """Return what is wrong with a job's file: line, what, fix."""
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
        ("workload_name: try\nworkload_nods: 2\n", 2, "workload_nods: no role has this variable", "did you mean workload_nodes?"),
        ("workload_nodes: two\n", 1, "workload_nodes must be a whole number, found `two`", "write a whole number"),
        ("workload_target: slrum\n", 1, "must be one of: auto, direct, slurm, kubernetes; found `slrum`", "did you mean slurm?"),
        ("workload_presets: debug-dense\n", 1, "workload_presets must be a list", "[debug-dense]"),
        ("workload_user: '{{ me }}'\n", 1, "workload_user is a template", "write the value itself"),
        ("baseline_swap: true\nworkload_name: try\n", 1, "baseline_swap", "a job sets workload_ variables"),
        ("- workload_name: try\n", 1, "holds no mapping", "name: value"),
        ("workload_name: try\nworkload_name: other\n", 2, "workload_name", ""),
        ("workload_name: [try\n", 0, "", ""),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, what: str, fix: str) -> None:
    """A slip in a job is found as one in hosts.yaml is: file, line, what is wrong, and how to mend it."""
    found = problems(write(tmp_path, text))

    assert len(found) == 1, found
    assert what in found[0][1]
    assert fix in found[0][2]
    assert line in (0, found[0][0])


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """The file's problems and those of `-e` come together."""
    found = problems(write(tmp_path, "workload_nods: 2\nworkload_nodes: x\n"), "workload_targt=slurm")

    assert len(found) == 3, found


def test_a_word_that_is_neither_file_nor_value_is_refused(tmp_path: Path) -> None:
    """`-e 4` is a slip, not a file."""
    with pytest.raises(PlanError, match="neither @FILE nor key=value"):
        read_job(write(tmp_path, JOB), ["4"])


def test_later_words_win_and_have_the_types_of_yaml(tmp_path: Path) -> None:
    """`-e` gives numbers, lists and mappings as YAML would, and a second file counts in between."""
    more = tmp_path / "more.yml"
    more.write_text("workload_nodes: 3\nworkload_venv: /opt/a\n")
    said = read_job(write(tmp_path, JOB), [f"@{more}", "workload_venv=/opt/b", "workload_settings={train: {steps: 7}}", "workload_user="])

    assert said.values["workload_nodes"] == 3
    assert said.values["workload_venv"] == "/opt/b"
    assert said.values["workload_settings"] == {"train": {"steps": 7}}
    assert said.values["workload_user"] == ""


def test_the_job_wins_over_hosts_yaml_and_that_over_the_default(tmp_path: Path) -> None:
    """What many jobs share stands in hosts.yaml."""
    (tmp_path / "hosts.yaml").write_text(CLUSTER)
    cluster = load_cluster(tmp_path / "hosts.yaml")
    job = whole_job(cluster, read_job(write(tmp_path, JOB)))

    assert (job["workload_user"], job["workload_lost_after_s"], job["workload_grace_s"]) == ("ada", 40, 120)


def test_a_job_that_the_cluster_cannot_run_is_refused_where_it_is_written(tmp_path: Path) -> None:
    """Too many hosts is said with the line that asks for them, and a value that is nowhere with the file."""
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


def test_a_job_is_held_against_queues_that_are_stated_for_hosts_without_jobs(tmp_path: Path) -> None:
    """A control plane that takes no pods has the queues' variables, and Kueue's topology contradicts one pod a node."""
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


def test_a_shipped_job_is_found_by_its_name(tmp_path: Path) -> None:
    """A path wins; else the name of one in workloads/jobs; else the nearest is named."""
    assert find_job("debug-dense") == content.jobs_dir() / "debug-dense.yml"
    assert find_job(str(write(tmp_path, JOB))) == tmp_path / "job.yml"
    with pytest.raises(PlanError) as caught:
        find_job("debug-dens")
    assert caught.value.fix == "did you mean debug-dense?"
