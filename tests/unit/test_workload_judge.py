"""What the role `workload` refuses and what it makes of a job: the judgement that `workload submit` and plain Ansible share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.launch.watch.job_spec import read_job

if TYPE_CHECKING:
    from pathlib import Path

ROLE = load_filters("workload")
GROUPS: dict[str, list[str]] = {
    "primus_watch": ["ctl"],
    "slurm_controller": ["ctl"],
    "slurm_node": ["n1", "n2", "n3", "n4"],
    "workload_node": ["n1", "n2", "n3", "n4"],
    "spare": ["n4"],
    "kube_node": ["n1", "n2", "n3", "n4"],
}
PODS = {"kubernetes_image": "registry.example.com/train:1", "kubernetes_gpu_resource": "amd.com/gpu"}
HOSTVARS: dict[str, dict[str, Any]] = {
    "n1": {"ansible_host": "10.0.0.1", "gpu_env_count": 8},
    "n2": {"ansible_host": "10.0.0.2", "ip": "192.168.0.2", "gpu_env_count": 8},
    "n3": {"ansible_host": "10.0.0.3", "gpu_env_count": 4},
    "n4": {"ansible_host": "10.0.0.4"},
}


def a_job(**given: Any) -> dict[str, Any]:
    """Return a whole job: the role's defaults, a name and a user, and what a test says without the prefix."""
    defaults = yaml.safe_load((content.roles_dir() / "workload" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    stated = {"name": "try", "user": "ada", "target": "direct", **given}
    return {**defaults, **{f"workload_{name}": value for name, value in stated.items()}}


def made(**given: Any) -> dict[str, Any]:
    """Return the job.json of a job that is one, after the watcher's own reader took it."""
    job = a_job(**given)
    assert ROLE.findings(job, GROUPS, HOSTVARS) == []
    document: dict[str, Any] = ROLE.document(job, GROUPS, HOSTVARS)
    read_job(json.dumps(document), origin="job.json")
    return document


@pytest.mark.parametrize(
    ("given", "about", "what"),
    [
        ({"name": ""}, "name", "workload_name is ''"),
        ({"name": "Try"}, "name", "workload_name is 'Try'"),
        ({"id": "other-abcdef"}, "id", "workload_id is 'other-abcdef'"),
        ({"user": ""}, "user", "workload_user is not set"),
        ({"user": "root"}, "user", "'root'"),
        ({"nodes": 0}, "nodes", "workload_nodes: 0"),
        ({"nodes": 4}, "nodes", "workload_node has 3 hosts"),
        ({"nodes": 3, "gpus_per_node": 8}, "nodes", "workload_node has 2 hosts for jobs with 8 GPUs"),
        ({"hosts": ["n3"], "gpus_per_node": 8}, "gpus_per_node", "n3 has 4 (gpu_env_count)"),
        ({"hosts": ["n1"], "nodes": 2}, "nodes", "workload_hosts has 1 host"),
        ({"hosts": ["n1", "n9"]}, "hosts", "n9 is no host of workload_node"),
        ({"hosts": ["n1"], "spares": ["n1"]}, "spares", "n1 is there twice"),
        ({"gpus_per_node": 2, "processes_per_node": 4}, "processes_per_node", "there are 2 GPUs"),
        ({"presets": ["debug-dens"]}, "presets", "there is no preset debug-dens"),
        ({"settings": {"train": {"steps": None}}}, "settings", "train.steps has no value"),
        ({"settings": {"train": {}}}, "settings", "train has no value"),
        ({"settings": {"checkpoint": {"folder": "/x"}}}, "settings", "checkpoint.folder has a variable of its own"),
        (
            {"progress_timeout_s": 600},
            "progress_timeout_s",
            "is 600, and the trainer's own limit for a step (watchdog.step_timeout_s) is 600",
        ),
        ({"settings": {"watchdog": {"step_timeout_s": 900}}}, "progress_timeout_s", "is 900, and the trainer's"),
        ({"presets": ["debug-dense"], "progress_timeout_s": 60}, "progress_timeout_s", "(watchdog.step_timeout_s) is 60"),
        ({"task": ["preflight"], "presets": ["debug-dense"]}, "task", "the task preflight takes no workload_presets"),
        ({"environment": "{}"}, "environment", "workload_environment must be a mapping"),
        ({"presets": "debug-dense"}, "presets", "workload_presets must be a list"),
        ({"task": []}, "task", "workload_task: there is no task"),
        ({"lost_after_s": 1}, "lost_after_s", "workload_lost_after_s: 1"),
        ({"lease_s": 4}, "lease_s", "workload_lease_s: 4"),
        ({"backoff_s": []}, "backoff_s", "workload_backoff_s: []"),
        ({"checkpoint_folder": "here"}, "checkpoint_folder", "workload_checkpoint_folder: 'here'"),
        ({"cli_options": ["--nnodes=2"]}, "cli_options", "workload_cli_options: --nnodes=2 is given by the watcher"),
        ({"target": "slurm", "slurm_options": ["--nodes=2"]}, "slurm_options", "workload_slurm_options: --nodes=2"),
        ({"target": "slurm", "nodes": 4}, "nodes", "slurm_node has 3 hosts"),
        ({"target": "kubernetes"}, "kubernetes_image", "workload_kubernetes_image is not set"),
        ({"target": "kubernetes", **PODS, "nodes": 5}, "nodes", "kube_node has 4 hosts"),
        ({"target": "kubernetes", **PODS, "nodes": 4, "gpus_per_node": 8}, "nodes", "kube_node has 3 hosts for jobs with 8 GPUs"),
        ({"target": "kubernetes", **PODS, "kubernetes_gpu_resource": "", "gpus_per_node": 8}, "kubernetes_gpu_resource", "is not set"),
        ({"target": "kubernetes", **PODS, "gpus_per_node": 2, "processes_per_node": 4}, "processes_per_node", "there are 2 GPUs"),
        ({"target": "kubernetes", **PODS, "kubernetes_storage": "/mnt"}, "kubernetes_storage", "/jfs/primus/jobs is not in /mnt"),
        ({"target": "kubernetes", **PODS, "data": ["/home/a.json"]}, "kubernetes_storage", "/home/a.json is not in /jfs"),
        ({"target": "kubernetes", **PODS, "hosts": ["n1"]}, "hosts", "is of the target direct"),
        ({"target": "kubernetes", **PODS, "kubernetes_resources": {"cpu": "many"}}, "kubernetes_resources", "cpu: 'many'"),
        ({"target": "kubernetes", **PODS, "kubernetes_env_secrets": ["A B"]}, "kubernetes_env_secrets", "'A B' is no name"),
        ({"target": "kubernetes", **PODS, "kubernetes_tolerations": [{"kye": "a"}]}, "kubernetes_tolerations", "there is no such key"),
        ({"target": "kubernetes", **PODS, "kubernetes_groups": ["render"]}, "kubernetes_groups", "is no list of numbers of groups"),
        ({"target": "kubernetes", **PODS, "kubernetes_groups": 993}, "kubernetes_groups", "must be a list"),
    ],
)
def test_a_job_that_cannot_be_is_refused(given: dict[str, Any], about: str, what: str) -> None:
    """Each finding names the variable to change, says what is wrong in its words, and how to mend it."""
    found = ROLE.findings(a_job(**given), GROUPS, HOSTVARS)

    assert [one.about for one in found] == [f"workload_{about}"], found
    assert what in found[0].what
    assert found[0].fix


@pytest.mark.parametrize(
    "given",
    [
        {"progress_timeout_s": 601},
        {"progress_timeout_s": 0},
        {"progress_timeout_s": 61, "settings": {"watchdog": {"step_timeout_s": 60}}},
        {"progress_timeout_s": 61, "settings": {"watchdog": {"step_timeout_s": 0}}},  # the trainer does not look
        {"progress_timeout_s": 61, "presets": ["debug-dense"], "settings": {"train": {"steps": 9}}},
        {"progress_timeout_s": 61, "presets": ["/jfs/my.yaml"]},  # what it says nobody knows here
        {"progress_timeout_s": 61, "task": ["train", "pretrain", "watchdog.step_timeout_s=60"]},
        {"progress_timeout_s": 61, "task": ["benchmark", "gemm"]},
    ],
)
def test_the_trainer_may_have_the_first_word_on_a_step_that_hangs(given: dict[str, Any]) -> None:
    """A limit of the watcher above the trainer's is right, and none is stated for a task without that limit."""
    assert ROLE.findings(a_job(**given), GROUPS, HOSTVARS) == []


def test_the_trainers_own_limit_is_the_one_that_jobs_are_held_against() -> None:
    """The role knows the default of another program: the two stay the same."""
    text = (content.jobs_dir().parent / "train" / "settings.py").read_text(encoding="utf-8")

    assert f"step_timeout_s: float = setting({ROLE.STEP_LIMIT_S}, " in text


@pytest.mark.parametrize(
    ("without", "given", "what"),
    [
        ("primus_watch", {}, "nobody would keep the job"),
        ("slurm_node", {"target": "slurm"}, "this cluster has no Slurm"),
        ("workload_node", {}, "workload_node has 0 hosts"),
    ],
)
def test_a_cluster_without_the_group_is_refused(without: str, given: dict[str, Any], what: str) -> None:
    """A target whose hosts are in no group is said before anything is contacted."""
    groups = {name: hosts for name, hosts in GROUPS.items() if name != without}
    found = ROLE.findings(a_job(**given), groups, HOSTVARS)

    assert [what in one.what for one in found] == [True], found


def test_everything_is_said_at_once() -> None:
    """Three things wrong are three findings, and as many lines with a fix for plain Ansible."""
    job = a_job(name="", user="", presets=["nothing"])

    assert [one.about for one in ROLE.findings(job, GROUPS, HOSTVARS)] == ["workload_name", "workload_user", "workload_presets"]
    assert [". Fix: " in line for line in ROLE.refusals(job, GROUPS, HOSTVARS)] == [True] * 3


def test_a_service_host_that_cannot_submit_is_no_keeper_of_slurm_jobs() -> None:
    """A job of Slurm is submitted by sbatch, which works on a login host or a controller only."""
    groups = {**GROUPS, "primus_watch": ["svc"]}
    refused = ROLE.findings(a_job(target="slurm"), groups, HOSTVARS)

    assert "svc, the first host of primus_watch" in refused[0].what
    assert ROLE.findings(a_job(target="slurm"), {**groups, "slurm_login": ["svc"]}, HOSTVARS) == []


def test_a_direct_job_names_candidates_spares_and_the_addresses_that_are_pinned() -> None:
    """Hosts that are not spare come first, `ip` before `ansible_host`, those with too few GPUs are left out."""
    direct = made(nodes=2, gpus_per_node=8, id="try-0a1b2c")["direct"]

    assert direct["hosts"] == [{"name": "n1", "address": "10.0.0.1"}, {"name": "n2", "address": "192.168.0.2"}]
    assert direct["spares"] == [{"name": "n4", "address": "10.0.0.4"}]
    assert set(direct) == {"hosts", "spares"}  # how they are reached is root's affair, and no job's


def test_hosts_are_offered_in_the_order_that_a_submission_found() -> None:
    """Hosts and spares each; who is not named comes last, and what a job states itself stays as it is."""
    order = ["n4", "n3", "n1"]
    found, stated = made(order=order)["direct"], made(order=order, hosts=["n1", "n3"])["direct"]

    assert [host["name"] for host in found["hosts"]] == ["n3", "n1", "n2"]
    assert [host["name"] for host in stated["hosts"]] == ["n1", "n3"]


@pytest.mark.parametrize("target", ["direct", "slurm", "kubernetes"])
def test_hosts_that_a_submission_found_out_of_service_are_handed_to_the_watcher(target: str) -> None:
    """They stay hosts of the job, which may come back; where there are none, job.json says nothing of it, as older programs know it."""
    left_out = [{"host": "n2", "reason": "is quarantined by ada (ECC errors)"}]

    assert made(target=target, left_out=left_out, **PODS)["left_out"] == left_out
    assert "left_out" not in made(target=target, **PODS)
    assert [one.about for one in ROLE.findings(a_job(left_out=[{"hots": "n2"}]), GROUPS, HOSTVARS)][:1] == ["workload_left_out[0]"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpus_per_node": 8}, (["n1", "n2"], ["n4"])),
        ({"hosts": ["n3"], "spares": ["n1"]}, (["n3"], ["n1"])),
        ({"target": "slurm"}, (["n1", "n2", "n3"], ["n4"])),
        ({"target": "slurm", "slurm_partition": "spare"}, (["n1", "n2", "n3", "n4"], [])),
        ({"target": "kubernetes", **PODS}, (["n1", "n2", "n3"], ["n4"])),
    ],
)
def test_who_may_become_a_host_of_a_job(given: dict[str, Any], expected: tuple[list[str], list[str]]) -> None:
    """Of these a submission asks who is in service; who names a partition of Slurm's gets no spare beside it."""
    assert ROLE.candidates(a_job(**given), GROUPS, HOSTVARS) == expected


def test_a_job_of_kubernetes_says_what_each_pod_has() -> None:
    """GPUs by the name that the nodes' model has in Kubernetes, numbers as text, spares by name."""
    hosts = {**HOSTVARS, "n1": {**HOSTVARS["n1"], "gpu_env_model": "MI300X"}}
    given = {"kubernetes_image": "a/b:1", "kubernetes_resources": {"cpu": 96, "rdma/hca": 1}, "kubernetes_host_network": True}
    given["kubernetes_groups"] = [993]
    job = a_job(target="kubernetes", gpus_per_node=8, kubernetes_queue="training", kubernetes_env_secrets=["site-token"], **given)
    pods = ROLE.document(job, GROUPS, hosts)["kubernetes"]

    assert ROLE.findings(job, GROUPS, hosts) == []
    assert pods["resources"] == {"cpu": "96", "rdma/hca": "1", "amd.com/gpu": "8"}
    assert (pods["queue"], pods["host_network"], pods["spares"], pods["secrets"]) == ("training", True, ["n4"], ["site-token"])
    assert pods["groups"] == [993]
    nvidia = {**hosts, "n1": {"gpu_env_model": "H100"}}
    assert "nvidia.com/gpu" in ROLE.document(job, GROUPS, nvidia)["kubernetes"]["resources"]


QUEUES: dict[str, Any] = {
    "kueue_topology_levels": ["primus-bootstrap.io/rack"],
    "kueue_flavors": [{"name": "racks"}, {"name": "loose", "topology": False}],
    "kueue_cluster_queues": [
        {"name": "all", "quotas": [{"flavor": "racks", "resources": {}}]},
        {"name": "both", "quotas": [{"flavor": "racks", "resources": {}}, {"flavor": "loose", "resources": {}}]},
        {"name": "free", "quotas": [{"flavor": "loose", "resources": {}}]},
    ],
    "kueue_local_queues": [
        *({"name": name, "namespace": "primus-jobs", "cluster_queue": name} for name in ("all", "both", "free")),
        {"name": "elsewhere", "namespace": "others", "cluster_queue": "all"},
    ],
}


@pytest.mark.parametrize(
    ("given", "changed", "refused"),
    [
        ({"queue": "all"}, {}, True),
        ({"queue": "all", "topology": "primus-bootstrap.io/rack"}, {}, True),
        ({"queue": "both", "topology": "primus-bootstrap.io/rack"}, {}, True),
        ({"queue": "both"}, {}, False),  # without a level Kueue leaves it to the scheduler
        ({"queue": "free"}, {}, False),
        ({"queue": "elsewhere"}, {}, False),  # of another namespace: of this one's nobody knows
        ({"queue": "all"}, {"kueue_topology_levels": []}, False),
        ({"queue": "all"}, {"kueue_topology_levels": "{{ levels }}"}, False),
        ({}, {}, False),
    ],
)
def test_a_part_of_a_node_is_refused_where_the_queue_places_pods(given: dict[str, Any], changed: dict[str, Any], refused: bool) -> None:  # noqa: FBT001
    """Kueue would give two ranks the same node, and one pod a node is what they may have: the second would wait for ever."""
    hosts, groups = {**HOSTVARS, "ctl": {**QUEUES, **changed}}, {**GROUPS, "kueue": ["ctl"]}
    pods = {f"kubernetes_{name}": value for name, value in given.items()}
    job = {"target": "kubernetes", **PODS, **pods, "nodes": 2, "gpus_per_node": 4}
    found = ROLE.findings(a_job(**job), groups, hosts)

    assert [one.about for one in found] == ["workload_gpus_per_node"] * refused
    assert all("workload_gpus_per_node is 4 and n1 has 8" in one.what for one in found)
    assert ROLE.findings(a_job(**{**job, "nodes": 1}), groups, hosts) == []
    assert ROLE.findings(a_job(**{**job, "gpus_per_node": 8}), groups, hosts) == []


def test_a_cluster_that_the_inventory_does_not_know_takes_any_number_of_nodes() -> None:
    """Its scheduler says how many there are."""
    groups = {"primus_watch": ["ctl"]}

    assert ROLE.findings(a_job(target="kubernetes", nodes=64, gpus_per_node=8, **PODS), groups, {}) == []
    assert ROLE.candidates(a_job(target="kubernetes", **PODS), groups, {}) == ([], [])


def test_the_words_of_a_run() -> None:
    """Presets come first, settings win over them, data and the checkpoint folder last, all as the trainer reads them."""
    settings = {"train": {"steps": 9}, "compute": {"compile": True}, "optimizer": {"lr": 3e-4}}
    job = made(
        presets=["debug-dense", "/jfs/my.yaml"], settings=settings, data=["/jfs/a.json", "/jfs/b.json"], checkpoint_folder="/jfs/ckpt"
    )

    assert job["words"] == [
        *("train", "pretrain", "--config", "debug-dense", "--config", "/jfs/my.yaml"),
        *("train.steps=9", "compute.compile=true", "optimizer.lr=0.0003"),
        *("data.source=files", "data.files=/jfs/a.json,/jfs/b.json", "checkpoint.folder=/jfs/ckpt"),
    ]
    assert job["checkpoints"] == "/jfs/ckpt"


def test_options_and_environment_become_text() -> None:
    """Numbers and booleans of YAML are what a shell would show."""
    job = made(venv="/opt/train", cli_options=["--hooks=/jfs/hooks"], environment={"OMP_NUM_THREADS": 4, "DEBUG": True})

    assert job["options"] == ["--venv=/opt/train", "--hooks=/jfs/hooks"]
    assert job["environment"] == {"OMP_NUM_THREADS": "4", "DEBUG": "true"}


def test_auto_is_slurm_where_there_is_slurm() -> None:
    """The same job file serves both kinds of clusters."""
    assert made(target="auto", slurm_partition="gpu")["slurm"] == {"partition": "gpu", "options": []}
    assert ROLE.target(a_job(target="auto"), {**GROUPS, "slurm_node": []}) == "direct"
    assert ROLE.target(a_job(target="auto"), {**GROUPS, "slurm_node": [], "workload_node": []}) == "kubernetes"
    assert ROLE.target(a_job(target="auto"), {"primus_watch": ["ctl"]}) == "direct"


def test_new_ids_differ_and_are_ids() -> None:
    """Two submissions of one file are two jobs."""
    one, other = ROLE.new_id("try"), ROLE.new_id("try")

    assert one != other
    assert made(id=one)["id"] == one


@pytest.mark.parametrize("path", sorted(content.jobs_dir().glob("*.yml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("target", ["direct", "slurm", "kubernetes"])
def test_every_shipped_job_is_one(path: Path, target: str) -> None:
    """With a user, and an image where there are pods, each runs on a cluster that has hosts for it."""
    given = {name.removeprefix("workload_"): value for name, value in yaml.safe_load(path.read_text(encoding="utf-8")).items()}

    assert made(**given, **PODS, target=target)["name"] == path.stem.replace(".", "-")


def test_the_roles_job_has_every_variable() -> None:
    """What Ansible hands to the filters is the whole set, or a new variable would have no effect there."""
    known = yaml.safe_load((content.roles_dir() / "workload" / "vars" / "main.yml").read_text(encoding="utf-8"))["_workload_job"]
    declared = {name for name, option in load_options().items() if option.owner == "workload"}

    assert set(known) == declared - {"workload_program", "workload_users"}


def test_the_folder_of_jobs_is_the_same_everywhere() -> None:
    """Two roles and two playbooks know where jobs lie and with what program."""
    options = load_options()
    folder, program = options["workload_folder"].default, options["primus_cli_program"].default
    text = (content.playbooks_dir() / "vars" / "primus_watch.yml").read_text(encoding="utf-8")

    assert (options["primus_watch_folder"].default, options["primus_watch_program"].default) == (folder, program)
    assert options["workload_program"].default == program
    assert f"workload_folder | default('{folder}')" in text
    assert f"primus_cli_program | default('{program}')" in text
    assert f"primus_cli_program | default('{program}')" in (content.playbooks_dir() / "workload.yml").read_text(encoding="utf-8")
