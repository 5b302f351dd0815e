"""Module `slurm_config`: files generated from node fragments and settings, and the restarts they require."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.slurm_rig import DATABASE, SETTINGS, conf_values, config, fragment, words_of

if TYPE_CHECKING:
    from pathlib import Path


def make(tmp_path: Path, nodes: dict[str, dict[str, Any]], *, check: bool = False, **changes: Any) -> dict[str, Any]:
    """Generate the configuration for nodes given by name; return the module's result."""
    fragments = tmp_path / "nodes.d"
    fragments.mkdir(exist_ok=True)
    for name, node in nodes.items():
        (fragments / f"{name}.json").write_text(fragment(name, **node))
    settings = {**SETTINGS, **changes}
    members = list(nodes)
    found = config.read_fragments(fragments, members)
    fleet = config.Fleet(tuple(members), settings["groups"], tuple(settings["spare"]))
    result: dict[str, Any] = config.apply(tmp_path, config.all_files(settings, found.nodes, fleet), check=check)
    return result


def read(tmp_path: Path, name: str = "slurm.conf") -> str:
    """Return the text of a generated file."""
    return (tmp_path / name).read_text()


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    """The same nodes and settings give the same bytes."""
    first = make(tmp_path, {"n1": {}, "n2": {}})
    second = make(tmp_path, {"n1": {}, "n2": {}})

    assert (first["changed"], first["action"]) == (True, "restart")
    assert (second["changed"], second["action"], second["restart_nodes"], second["diff"]) == (False, "none", False, [])


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    """It reports the pending files."""
    result = make(tmp_path, {"n1": {}}, check=True)

    assert result["changed"]
    assert "NodeName=n1" in result["diff"][0]["after"]
    assert not (tmp_path / "slurm.conf").exists()


def test_node_line_describes_the_node(tmp_path: Path) -> None:
    """slurm.conf has size, address and GPUs; gres.conf has the device files, one line for equal nodes."""
    make(tmp_path, {"n1": {"hostname": "gpu-a"}, "n2": {"address": "n2"}})
    first, second = words_of(read(tmp_path), "NodeName")

    assert first["NodeHostname"] == "gpu-a"
    assert (first["NodeAddr"], "NodeAddr" in second) == ("10.0.1.1", False)
    assert (first["Sockets"], first["CoresPerSocket"], first["RealMemory"], first["Gres"]) == ("2", "8", "64000", "gpu:h200:8")
    assert "NodeName=n[1-2] Name=gpu Type=h200 File=/dev/nvidia[0-7]\n" in read(tmp_path, "gres.conf")


def test_missing_device_file_is_omitted(tmp_path: Path) -> None:
    """Daemon slurmd waits for the files in gres.conf. In slurm.conf the number of GPUs stays."""
    make(tmp_path, {"n1": {"gpu_files": []}})

    assert not (tmp_path / "gres.conf").exists()
    assert words_of(read(tmp_path), "NodeName")[0]["Gres"] == "gpu:h200:8"


def test_job_gets_gpu_variables_of_its_vendor_only(tmp_path: Path) -> None:
    """HIP counts CUDA_VISIBLE_DEVICES relative to ROCR_VISIBLE_DEVICES. Unknown vendors use Slurm's default."""
    files = ["/dev/dri/renderD128"]
    amd, nvidia, other = ({"gpu_type": kind, "gpu_count": 1, "gpu_files": files} for kind in ("mi300x", "h200", "odd"))
    make(tmp_path, {"n1": {**amd, "gpu_vendor": "amd"}, "n2": {**nvidia, "gpu_vendor": "nvidia"}, "n3": other})

    assert read(tmp_path, "gres.conf").splitlines()[1:] == [
        "NodeName=n2 Name=gpu Type=h200 File=/dev/dri/renderD128 Flags=nvidia_gpu_env",
        "NodeName=n1 Name=gpu Type=mi300x File=/dev/dri/renderD128 Flags=amd_gpu_env",
        "NodeName=n3 Name=gpu Type=odd File=/dev/dri/renderD128",
    ]


def test_process_tracking_uses_the_weakest_node(tmp_path: Path) -> None:
    """Control groups are used if every node has them; only then memory is limited."""
    make(tmp_path, {"n1": {}, "n2": {}})
    able = conf_values(read(tmp_path))
    groups = read(tmp_path, "cgroup.conf")
    make(tmp_path, {"n1": {}, "n2": {"cgroup": ""}})
    unable = conf_values(read(tmp_path))

    assert (able["ProctrackType"], able["TaskPlugin"]) == ("proctrack/cgroup", "task/cgroup,task/affinity")
    assert (able["SelectTypeParameters"], able["DefMemPerCPU"]) == ("CR_Core_Memory", "4000")
    # Without it pam_slurm_adopt would refuse the owner of a running job.
    assert (able["PrologFlags"], unable["PrologFlags"]) == ("Contain", "Contain")
    assert "ConstrainDevices=yes" in groups
    assert unable["ProctrackType"] == "proctrack/linuxproc"
    assert "TaskPlugin" not in unable
    assert not (tmp_path / "cgroup.conf").exists()


BIG: dict[str, Any] = {"cpus": 256, "sockets": 2, "cores_per_socket": 64, "threads_per_core": 2, "memory_mib": 2_048_000}
# 13 CPUs a GPU are six and a half cores. Seven cores for each of eight jobs exceed the 52 cores.
ODD: dict[str, Any] = {"cpus": 104, "sockets": 2, "cores_per_socket": 26, "threads_per_core": 2}
NO_GPUS: dict[str, Any] = {"gpu_type": "", "gpu_count": 0, "gpu_files": [], "memory_mib": 16000}


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ({"n1": {}}, "2"),
        ({"n1": BIG}, "32"),
        ({"n1": ODD}, "12"),
        ({"n1": BIG, "n2": {}}, "2"),
        ({"n1": BIG, "n2": NO_GPUS}, "32"),
        ({"n1": NO_GPUS}, None),
        ({"n1": {"cpus": 2, "sockets": 1, "cores_per_socket": 2}}, None),
        ({"n1": {**BIG, "cpus": 128}}, "16"),  # CPUs are cores there.
    ],
)
def test_job_gets_a_share_of_cpus_for_each_gpu(tmp_path: Path, nodes: dict[str, dict[str, Any]], share: str | None) -> None:
    """Whole cores, as many as the poorest GPU node can give. Slurm's default is one CPU a task."""
    make(tmp_path, nodes)
    found = conf_values(read(tmp_path))

    assert found.get("DefCpuPerGPU") == share
    assert "JobDefaults" not in read(tmp_path)  # Not a key of slurm.conf: slurmctld would not start.
    assert [one.keys() for one in words_of(read(tmp_path), "PartitionName")] == [{"PartitionName", "Nodes", "Default"}]


def test_partition_with_larger_nodes_has_its_own_share(tmp_path: Path) -> None:
    """A small node in another partition has no effect. A configured share has priority."""
    both: list[dict[str, Any]] = [{"name": "big", "nodes": "n1", "default": True}, {"name": "all", "nodes": "all"}]
    make(tmp_path, {"n1": BIG, "n2": NO_GPUS, "n3": {}}, partitions=both)
    usual, (big, everything) = conf_values(read(tmp_path)), words_of(read(tmp_path), "PartitionName")
    partitions = [{**both[0], "extra": {"defmempernode": 1000, "DefCpuPerGPU": 9}}, {**both[1], "nodes": "n1"}]
    make(tmp_path, {"n1": BIG, "n2": NO_GPUS, "n3": {}}, partitions=partitions, extra={"defcpupergpu": 5})
    own, (first, second) = conf_values(read(tmp_path)), words_of(read(tmp_path), "PartitionName")

    assert (usual["DefCpuPerGPU"], usual["DefMemPerCPU"]) == ("2", "1000")
    assert (big["DefCpuPerGPU"], big["DefMemPerCPU"]) == ("32", "8000")
    assert everything.keys() == {"PartitionName", "Nodes", "Default"}
    assert own["DefCpuPerGPU"] == "5"
    assert (first["DefCpuPerGPU"], first["defmempernode"], "DefMemPerCPU" in first) == ("9", "1000", False)
    assert ("DefCpuPerGPU" in second, second["DefMemPerCPU"]) == (False, "8000")


def test_newer_slurm_disables_missing_control_groups(tmp_path: Path) -> None:
    """From 23.02 on slurmd requires them even if no plug-in does."""
    make(tmp_path, {"n1": {"cgroup": "", "release": "24.11"}})

    assert "CgroupPlugin=disabled" in read(tmp_path, "cgroup.conf")


@pytest.mark.parametrize(
    ("changes", "nodes", "action", "restart_nodes"),
    [
        ({"slurmd_timeout_s": 30}, {"n1": {}}, "reconfigure", False),
        ({"partitions": [{"name": "other", "nodes": "all"}]}, {"n1": {}}, "reconfigure", False),
        ({}, {"n1": {}, "n2": {}}, "restart", False),
        ({"proctrack": "proctrack/linuxproc"}, {"n1": {}}, "restart", True),
        ({"slurmd_port": 7000}, {"n1": {}}, "restart", True),
        ({"bind_own_address": True}, {"n1": {}}, "restart", True),
    ],
)
def test_only_required_daemons_restart(
    tmp_path: Path, changes: dict[str, Any], nodes: dict[str, dict[str, Any]], action: str, *, restart_nodes: bool
) -> None:
    """Times and partitions need a reconfigure, a new node a restart of slurmctld, a new port a restart of all."""
    make(tmp_path, {"n1": {}})
    result = make(tmp_path, nodes, **changes)

    assert (result["action"], result["restart_nodes"]) == (action, restart_nodes)


def test_daemons_listen_on_one_address_only_if_set(tmp_path: Path) -> None:
    """Both words are needed: the first is for slurmctld, the second for slurmd and srun."""
    make(tmp_path, {"n1": {}})
    before = "CommunicationParameters" in read(tmp_path)
    make(tmp_path, {"n1": {}}, bind_own_address=True)

    assert not before
    assert "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n" in read(tmp_path)


def test_file_lists_the_digest_for_its_readers(tmp_path: Path) -> None:
    """Each slurmd compares the digest of its copy with that of its start."""
    result = make(tmp_path, {"n1": {}})

    assert f"# primus restart_digest={result['restart_digest']} node_digest={result['node_digest']}\n" in read(tmp_path)


def test_controller_without_nodes_starts(tmp_path: Path) -> None:
    """A slurmctld rejects a configuration without nodes, and a new cluster may have none."""
    make(tmp_path, {})

    assert words_of(read(tmp_path), "NodeName") == [{"NodeName": "absent", "State": "FUTURE"}]
    assert words_of(read(tmp_path), "PartitionName") == [{"PartitionName": "main", "Default": "YES"}]


def test_node_without_a_valid_fragment_is_omitted(tmp_path: Path) -> None:
    """Missing, damaged and foreign fragments are reported. Fragments of non-members are ignored."""
    fragments = tmp_path / "nodes.d"
    fragments.mkdir()
    for name, text in {"n1": fragment("n1"), "n2": '{"schema"', "n3": fragment("n9"), "gone": fragment("gone")}.items():
        (fragments / f"{name}.json").write_text(text)
    found = config.read_fragments(fragments, ["n1", "n2", "n3", "n4"])

    assert [node.name for node in found.nodes] == ["n1"]
    assert list(found.left_out) == ["n2", "n3", "n4"]
    assert "cannot be read" in found.left_out["n2"]


PREEMPTION = [
    ([], [{"name": "a"}, {"name": "b"}], None),
    ([], [{"name": "a"}, {"name": "b", "priority_tier": 5}], "preempt/partition_prio"),
    ([{"name": "high", "preempt": ["normal"]}], [{"name": "a"}, {"name": "b", "priority_tier": 5}], "preempt/qos"),
]


@pytest.mark.parametrize(("qos", "partitions", "by"), PREEMPTION)
def test_preemption_mode(tmp_path: Path, qos: list[dict[str, Any]], partitions: list[dict[str, Any]], by: str | None) -> None:
    """By QOS if one preempts another, else by several tiers, else off. Preempted jobs are requeued."""
    make(tmp_path, {"n1": {}}, qos=qos, partitions=partitions, accounting=DATABASE)
    found = conf_values(read(tmp_path))

    assert found.get("PreemptType") == by
    assert found.get("PreemptMode") == ("REQUEUE" if by else None)


def test_accounting_is_enforced_if_users_are_listed(tmp_path: Path) -> None:
    """The database is configured and GPUs are counted; only listed users make an account mandatory."""
    make(tmp_path, {"n1": {}}, accounting=DATABASE)
    free = conf_values(read(tmp_path))
    make(tmp_path, {"n1": {}}, accounting=DATABASE, users=[{"name": "ada", "accounts": ["team"]}])
    bound = conf_values(read(tmp_path))

    assert (free["AccountingStorageHost"], free["AccountingStorageTRES"]) == ("10.0.0.9", "gres/gpu,gres/gpu:h200")
    assert "AccountingStorageEnforce" not in free
    assert bound["AccountingStorageEnforce"] == "associations,limits,qos"


def test_site_lines_replace_generated_ones(tmp_path: Path) -> None:
    """Keys are compared case-insensitively; each key occurs once."""
    make(tmp_path, {"n1": {}}, extra={"schedulertype": "sched/builtin", "MaxJobCount": 20000})
    found = conf_values(read(tmp_path))

    assert (found["SchedulerType"], found["MaxJobCount"]) == ("sched/builtin", "20000")


TOPOLOGIES = [
    ([{"switch": "leaf1"}, {"switch": "leaf2"}], ["leaf1 Nodes=n1", "leaf2 Nodes=n2", "fabric Switches=leaf[1-2]"]),
    ([{"switch": "s/l1"}, {"switch": "s/l2"}], ["l1 Nodes=n1", "l2 Nodes=n2", "s Switches=l[1-2]"]),
    ([{"switch": "l1", "rack": "r"}, {"rack": "r"}], ["l1 Nodes=n1", "unplaced Nodes=n2", "fabric Switches=l1,unplaced"]),
    ([{"rack": "r1"}, {"rack": "r1"}], ["r1 Nodes=n[1-2]"]),
]


@pytest.mark.parametrize(("extra", "kept"), [({}, "MEMLOCK"), ({"propagateResourceLimits": "NONE"}, None), ({"KillWait": 5}, "MEMLOCK")])
def test_job_does_not_inherit_the_locked_memory_of_its_submission(tmp_path: Path, extra: dict[str, Any], kept: str | None) -> None:
    """Slurm does not start with both keys, so a site that sets the other one replaces ours."""
    make(tmp_path, {"n1": {}}, extra=extra)

    assert conf_values(read(tmp_path)).get("PropagateResourceLimitsExcept") == kept


@pytest.mark.parametrize(("places", "lines"), TOPOLOGIES)
def test_topology_uses_switches_or_racks(tmp_path: Path, places: list[dict[str, Any]], lines: list[str]) -> None:
    """The first of them that separates the nodes counts. Switches may be nested below one root."""
    make(tmp_path, {f"n{number}": place for number, place in enumerate(places, start=1)})

    assert read(tmp_path, "topology.conf").splitlines()[1:] == [f"SwitchName={line}" for line in lines]
    assert conf_values(read(tmp_path))["TopologyPlugin"] == "topology/tree"


def test_subnets_are_not_guessed_to_be_switches(tmp_path: Path) -> None:
    """Without switches and racks there is no topology, also if the nodes are in several subnets."""
    make(tmp_path, {"n1": {"address": "10.0.1.1"}, "n2": {"address": "10.0.2.1"}, "n3": {"address": "fd00:1::1"}})

    assert "TopologyPlugin" not in read(tmp_path)
    assert not (tmp_path / "topology.conf").exists()


@pytest.mark.parametrize("switches", [("a/l", "b/l"), ("l", "l/m"), ("l/l", "x")])
def test_conflicting_switches_are_refused(tmp_path: Path, switches: tuple[str, str]) -> None:
    """A leaf below two switches, a switch with nodes and switches, a switch below itself."""
    with pytest.raises(ValueError, match="switch l"):
        make(tmp_path, {"n1": {"switch": switches[0]}, "n2": {"switch": switches[1]}})


def test_errors_have_a_fix() -> None:
    """The module uses the validation of the preflight."""
    settings = {**SETTINGS, "partitions": [{"name": "main", "nodes": "nosuch"}], "extra": {"NodeName": "n9"}, "qos": [{"name": "high"}]}
    found = config.problems(settings, ["n1"])

    assert len(found) == 3
    assert all(one["fix"] for one in found)


def test_default_settings_are_valid() -> None:
    """The defaults have no findings."""
    assert config.problems(SETTINGS, ["n1"]) == []


NEW = {"release": "23.11"}


def test_private_job_folders_need_control_groups(tmp_path: Path) -> None:
    """They also need a Slurm release that shows later mounts inside a job. The site may disable them."""
    for changes, node, wanted in (
        ({}, NEW, True),
        ({}, {"release": "22.05"}, False),
        ({}, {"release": ""}, False),
        ({"private_tmp": False}, NEW, False),
        ({}, {**NEW, "cgroup": "", "container": True}, False),
        ({"proctrack": "proctrack/linuxproc"}, NEW, False),
    ):
        make(tmp_path, {"n1": node}, **changes)

        assert (config.PRIVATE_TMP in read(tmp_path)) is wanted
        assert (tmp_path / "job_container.conf").exists() is wanted
    make(tmp_path, {"n1": NEW})
    assert read(tmp_path, "job_container.conf").endswith("AutoBasePath=true\nBasePath=/var/lib/slurm/slurmd/job_container\nShared=true\n")


@pytest.mark.parametrize(
    ("before", "after", "status", "running", "kept"),
    [
        ("", "with", 0, "", None),
        ("without", "with", 0, "", None),
        ("without", "with", 0, "71", False),
        ("without", "with", None, "no answer", False),
        ("without", "with", 1, "slurm_load_jobs error", False),
        ("with", "without", 0, "71", True),
        ("with", "with", 0, "71", None),
        ("without", "without", 0, "71", None),
    ],
)
def test_private_job_folders_change_only_without_running_jobs(
    before: str, after: str, status: int | None, running: str, *, kept: bool | None
) -> None:
    """Jobs that started before could start no further step. Without an answer, jobs may be running."""
    answer = sys.modules["ansible.module_utils.slurm_commands"].Answer
    texts = {"": "", "with": f"A=b\n{config.PRIVATE_TMP}", "without": "A=b\n"}
    settings = {"private_tmp": after == "with"}
    found = config.keep_private_tmp(settings, texts[before], texts[after], lambda *_: answer(status, running))

    assert found == (settings if kept is None else {"private_tmp": kept})


def test_private_data_hides_jobs_of_other_users(tmp_path: Path) -> None:
    """The line follows the setting; an empty list writes none."""
    make(tmp_path, {"n1": {}})
    assert "PrivateData=accounts,jobs\n" in read(tmp_path)
    make(tmp_path, {"n1": {}}, private_data=[])
    assert "PrivateData" not in read(tmp_path)


def test_host_without_control_groups_is_refused() -> None:
    """A container depends on its host. Fragments of older releases are unknown and accepted."""
    slurm_nodes = sys.modules["ansible.module_utils.slurm_nodes"]
    nodes = {
        name: slurm_nodes.parse_node(fragment(name, **changes))
        for name, changes in (
            ("real", {"cgroup": "", "cgroup_reason": "no plug-in for cgroup v2", "container": False}),
            ("box", {"cgroup": "", "container": True}),
            ("old", {"cgroup": ""}),
            ("good", {"container": False}),
        )
    }

    assert "cgroups on real (no plug-in for cgroup v2), so jobs could" in config.missing_isolation(list(nodes.values()))
    assert config.missing_isolation([nodes["box"], nodes["old"], nodes["good"]]) == ""
    assert config.missing_isolation(list(nodes.values()), "proctrack/linuxproc") == ""
    assert "so slurmd would not start there. Fix: " in config.missing_isolation([nodes["box"]], "proctrack/cgroup")
