"""The role `workload`: the checks and the job.json that `workload submit` and plain Ansible share."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.inventory import job_rules
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.launch.watch import job_request
from primus_bootstrap.launch.watch.job_request import InventoryFacts, read_request, variable_of
from primus_bootstrap.launch.watch.job_spec import read_job

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.core.structured import Issue

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
    """Return all variables of a job: the role's defaults, a name and a user, and a test's values, which have no prefix."""
    defaults = yaml.safe_load((content.roles_dir() / "workload" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    stated = {"name": "try", "user": "ada", "target": "direct", **given}
    return {**defaults, **{f"workload_{name}": value for name, value in stated.items()}}


def found_issues(job: dict[str, Any], groups: dict[str, list[str]] = GROUPS, hostvars: dict[str, dict[str, Any]] = HOSTVARS) -> list[Issue]:
    """Return the mistakes of a job."""
    issues: list[Issue] = job_rules.find_issues(job, InventoryFacts(groups, hostvars))
    return issues


def candidates(job: dict[str, Any], groups: dict[str, list[str]], hostvars: dict[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the candidate hosts and spares of a job."""
    return job_request.candidate_hosts(read_request(job), InventoryFacts(groups, hostvars))


def target(job: dict[str, Any], groups: dict[str, list[str]]) -> str:
    """Return the target of a job."""
    return job_request.target_of(read_request(job), InventoryFacts(groups, {}))


def made(**given: Any) -> dict[str, Any]:
    """Return the job.json of a valid job, after the watcher's reader accepted it."""
    job = a_job(**given)
    assert found_issues(job) == []
    document: dict[str, Any] = job_rules.document(job, GROUPS, HOSTVARS)
    read_job(json.dumps(document), origin="job.json")
    return document


@pytest.mark.parametrize(
    ("given", "about", "what"),
    [
        ({"name": ""}, "name", "'' is not the name of a job"),
        ({"name": "Try"}, "name", "'Try' is not the name of a job"),
        ({"id": "other-abcdef"}, "id", "'other-abcdef' is not an id of try"),
        ({"user": ""}, "user", "workload_user: not set"),
        ({"user": "root"}, "user", "root may not have jobs"),
        ({"nodes": 0}, "nodes", "workload_nodes: expected a number from 1 to 1000000000, found 0"),
        ({"nodes": 4}, "nodes", "workload_node has 3 hosts"),
        ({"nodes": 3, "gpus_per_node": 8}, "nodes", "workload_node has 2 hosts for jobs with 8 GPUs"),
        ({"hosts": ["n3"], "gpus_per_node": 8}, "gpus_per_node", "n3 has 4 (gpu_env_count)"),
        ({"hosts": ["n1"], "nodes": 2}, "nodes", "workload_hosts has 1 host"),
        ({"hosts": ["n1", "n9"]}, "hosts", "n9 is not a host of workload_node"),
        ({"hosts": ["n1"], "spares": ["n1"]}, "spares", "n1 is named more than once"),
        ({"gpus_per_node": 2, "processes_per_node": 4}, "processes_per_node", "4 processes for 2 GPUs"),
        ({"presets": ["debug-dens"]}, "presets", "there is no preset debug-dens"),
        ({"settings": {"backend": "megatro"}}, "settings", "no such backend: megatro"),
        (
            {"settings": {"backend": "megatron", "megatron": {"moe_grouped_gem": True}}},
            "settings",
            "megatron.moe_grouped_gem: no such setting",
        ),
        ({"presets": ["llama-3.1-7b"], "settings": {"backend": "megatron"}}, "settings", "no such file, recipe, model or preset"),
        ({"settings": {"train": {"steps": None}}}, "settings", "workload_settings.train.steps: no value"),
        ({"settings": {"train": {}}}, "settings", "workload_settings.train: no value"),
        ({"settings": {"train": {"stepz": 3}}}, "settings", "workload_settings.train.stepz: no such setting"),
        ({"settings": {"train": {"steps": "many"}}}, "settings", "workload_settings.train.steps: found 'many'"),
        ({"task": ["train", "pretrian"]}, "task", "no such task: train pretrian"),
        ({"task": ["train", "pretrain", "train.stepz=3"]}, "task", "train.stepz: no such setting"),
        ({"task": ["train", "pretrain", "--config", "debug-dens"]}, "task", "--config debug-dens: no such file or preset"),
        ({"task": ["benchmark", "gemm", "--shape=square"]}, "task", "benchmark gemm: --shape: unknown option"),
        ({"task": ["preflight", "--gpuu"]}, "task", "preflight: --gpuu: unknown option"),
        ({"settings": {"checkpoint": {"folder": "/x"}}}, "settings", "workload_settings.checkpoint.folder: set by a variable of its own"),
        (
            {"progress_timeout_s": 600},
            "progress_timeout_s",
            "600 s is not more than the trainer's own limit for a step, watchdog.step_timeout_s (600 s)",
        ),
        ({"settings": {"watchdog": {"step_timeout_s": 900}}}, "progress_timeout_s", "900 s is not more than the trainer's"),
        ({"presets": ["debug-dense"], "progress_timeout_s": 60}, "progress_timeout_s", "watchdog.step_timeout_s (60 s)"),
        ({"task": ["preflight"], "presets": ["debug-dense"]}, "task", "the task preflight does not take workload_presets"),
        ({"environment": "{}"}, "environment", "workload_environment: expected a mapping"),
        ({"presets": "debug-dense"}, "presets", "workload_presets: expected a list"),
        ({"task": []}, "task", "workload_task: expected a task, found"),
        ({"lost_after_s": 1}, "lost_after_s", "workload_lost_after_s: expected a number from 5"),
        ({"lease_s": 4}, "lease_s", "workload_lease_s: expected a number from 5"),
        ({"backoff_s": []}, "backoff_s", "workload_backoff_s: expected at least one entry"),
        (
            {"checkpoint_folder": "here"},
            "checkpoint_folder",
            "workload_checkpoint_folder: expected an absolute path or an empty text, found 'here'",
        ),
        ({"cli_options": ["--nnodes=2"]}, "cli_options", "workload_cli_options: the watcher sets --nnodes=2 itself"),
        ({"target": "slurm", "slurm_options": ["--nodes=2"]}, "slurm_options", "workload_slurm_options: the watcher sets --nodes=2 itself"),
        ({"target": "slurm", "nodes": 4}, "nodes", "slurm_node has 3 hosts"),
        ({"target": "kubernetes"}, "kubernetes_image", "workload_kubernetes_image: not set"),
        ({"target": "kubernetes", **PODS, "nodes": 5}, "nodes", "kube_node has 4 hosts"),
        ({"target": "kubernetes", **PODS, "nodes": 4, "gpus_per_node": 8}, "nodes", "kube_node has 3 hosts for jobs with 8 GPUs"),
        ({"target": "kubernetes", **PODS, "kubernetes_gpu_resource": "", "gpus_per_node": 8}, "kubernetes_gpu_resource", "not set"),
        ({"target": "kubernetes", **PODS, "gpus_per_node": 2, "processes_per_node": 4}, "processes_per_node", "4 processes for 2 GPUs"),
        ({"target": "kubernetes", **PODS, "kubernetes_storage": "/mnt"}, "kubernetes_storage", "/jfs/primus/jobs is not below /mnt"),
        ({"target": "kubernetes", **PODS, "data": ["/home/a.json"]}, "kubernetes_storage", "/home/a.json is not below /jfs"),
        ({"target": "kubernetes", **PODS, "hosts": ["n1"]}, "hosts", "only for the target direct"),
        ({"target": "kubernetes", **PODS, "kubernetes_resources": {"cpu": "many"}}, "kubernetes_resources", "cpu: expected a quantity"),
        (
            {"target": "kubernetes", **PODS, "kubernetes_env_secrets": ["A B"]},
            "kubernetes_env_secrets",
            "expected a name of Kubernetes, found 'A B'",
        ),
        ({"target": "kubernetes", **PODS, "kubernetes_tolerations": [{"kye": "a"}]}, "kubernetes_tolerations", "[0].kye: unknown key"),
        ({"target": "kubernetes", **PODS, "kubernetes_groups": ["render"]}, "kubernetes_groups", "[0]: expected a whole number"),
        ({"target": "kubernetes", **PODS, "kubernetes_groups": 993}, "kubernetes_groups", "expected a list"),
    ],
)
def test_an_invalid_job_is_refused(given: dict[str, Any], about: str, what: str) -> None:
    """Each issue names the variable to change, the mistake and a fix."""
    found = found_issues(a_job(**given))

    assert [variable_of(issue) for issue in found] == [f"workload_{about}"], found
    assert what in str(found[0])
    assert found[0].fix


@pytest.mark.parametrize(
    "given",
    [
        {"progress_timeout_s": 601},
        {"progress_timeout_s": 0},
        {"progress_timeout_s": 61, "settings": {"watchdog": {"step_timeout_s": 60}}},
        {"progress_timeout_s": 61, "settings": {"watchdog": {"step_timeout_s": 0}}},  # no limit
        {"progress_timeout_s": 61, "presets": ["debug-dense"], "settings": {"train": {"steps": 9}}},
        {"progress_timeout_s": 61, "presets": ["/jfs/my.yaml"]},  # Its content is unknown here.
        {"progress_timeout_s": 61, "task": ["train", "pretrain", "watchdog.step_timeout_s=60"]},
        {"progress_timeout_s": 61, "task": ["benchmark", "gemm"]},
        {"progress_timeout_s": 61, "task": ["benchmark", "gemm", "-M", "4096", "--dtype", "bf16"]},
        {"progress_timeout_s": 61, "task": ["preflight", "check", "--gpu"]},
        {"progress_timeout_s": 61, "task": ["benchmark", "mine"], "cli_options": ["--script=/jfs/me/job.sh"]},
    ],
)
def test_the_watcher_may_wait_longer_than_the_trainer(given: dict[str, Any]) -> None:
    """Then the trainer reports a step that hangs. Tasks without that limit accept any value."""
    assert found_issues(a_job(**given)) == []


def test_the_role_knows_the_default_step_limit_of_the_trainer() -> None:
    """The two numbers are equal."""
    text = (content.jobs_dir().parent / "train" / "settings.py").read_text(encoding="utf-8")

    assert f"step_timeout_s: float = setting({job_rules.STEP_LIMIT_S}, " in text


@pytest.mark.parametrize(
    ("without", "given", "what"),
    [
        ("primus_watch", {}, "no watcher can run"),
        ("slurm_node", {"target": "slurm"}, "this cluster has no Slurm"),
        ("workload_node", {}, "workload_node has 0 hosts"),
    ],
)
def test_a_cluster_without_the_group_is_refused(without: str, given: dict[str, Any], what: str) -> None:
    """A target needs hosts in its group."""
    groups = {name: hosts for name, hosts in GROUPS.items() if name != without}
    found = found_issues(a_job(**given), groups, HOSTVARS)

    assert [what in issue.what for issue in found] == [True], found


def test_all_mistakes_are_reported_at_once() -> None:
    """Three mistakes give three issues, and three lines with a fix for plain Ansible."""
    job = a_job(name="", user="", presets=["nothing"])

    assert [variable_of(issue) for issue in found_issues(job)] == ["workload_name", "workload_user", "workload_presets"]
    assert [". Fix: " in line for line in job_rules.problems(job, GROUPS, HOSTVARS)] == [True] * 3


def test_the_first_service_host_must_be_able_to_submit_slurm_jobs() -> None:
    """Only login hosts and controllers can run sbatch."""
    groups = {**GROUPS, "primus_watch": ["svc"]}
    refused = found_issues(a_job(target="slurm"), groups, HOSTVARS)

    assert "svc, the first host of primus_watch" in refused[0].what
    assert found_issues(a_job(target="slurm"), {**groups, "slurm_login": ["svc"]}, HOSTVARS) == []


def test_a_direct_job_names_hosts_spares_and_pinned_addresses() -> None:
    """`ip` counts before `ansible_host`; hosts with too few GPUs are left out."""
    direct = made(nodes=2, gpus_per_node=8, id="try-0a1b2c")["direct"]

    assert direct["hosts"] == [{"name": "n1", "address": "10.0.0.1"}, {"name": "n2", "address": "192.168.0.2"}]
    assert direct["spares"] == [{"name": "n4", "address": "10.0.0.4"}]
    assert set(direct) == {"hosts", "spares"}  # A job cannot set connection variables.


def test_hosts_keep_the_order_of_the_submission() -> None:
    """Hosts that are not in workload_host_order come last. Hosts that the job names keep their own order."""
    order = ["n4", "n3", "n1"]
    found, stated = made(host_order=order)["direct"], made(host_order=order, hosts=["n1", "n3"])["direct"]

    assert [host["name"] for host in found["hosts"]] == ["n3", "n1", "n2"]
    assert [host["name"] for host in stated["hosts"]] == ["n1", "n3"]


@pytest.mark.parametrize("target", ["direct", "slurm", "kubernetes"])
def test_hosts_out_of_service_are_passed_to_the_watcher(target: str) -> None:
    """They may return later. Without any, job.json has no such key: earlier releases do not know it."""
    left_out = [{"host": "n2", "reason": "is quarantined by ada (ECC errors)"}]

    assert made(target=target, excluded_hosts=left_out, **PODS)["left_out"] == left_out
    assert "left_out" not in made(target=target, **PODS)
    assert [variable_of(issue) for issue in found_issues(a_job(excluded_hosts=[{"hots": "n2"}]))][:1] == ["workload_excluded_hosts"]


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
def test_candidate_hosts_and_spares(given: dict[str, Any], expected: tuple[list[str], list[str]]) -> None:
    """A job that names a Slurm partition has no spares."""
    assert candidates(a_job(**given), GROUPS, HOSTVARS) == expected


def test_a_kubernetes_job_describes_its_pods() -> None:
    """The GPU model gives the name of the resource; numbers become text."""
    hosts = {**HOSTVARS, "n1": {**HOSTVARS["n1"], "gpu_env_model": "MI300X"}}
    given = {"kubernetes_image": "a/b:1", "kubernetes_resources": {"cpu": 96, "rdma/hca": 1}, "kubernetes_host_network": True}
    given["kubernetes_groups"] = [993]
    job = a_job(target="kubernetes", gpus_per_node=8, kubernetes_queue="training", kubernetes_env_secrets=["site-token"], **given)
    pods = job_rules.document(job, GROUPS, hosts)["kubernetes"]

    assert found_issues(job, GROUPS, hosts) == []
    assert pods["resources"] == {"cpu": "96", "rdma/hca": "1", "amd.com/gpu": "8"}
    assert (pods["queue"], pods["host_network"], pods["spares"], pods["secrets"]) == ("training", True, ["n4"], ["site-token"])
    assert pods["groups"] == [993]
    nvidia = {**hosts, "n1": {"gpu_env_model": "H100"}}
    assert "nvidia.com/gpu" in job_rules.document(job, GROUPS, nvidia)["kubernetes"]["resources"]


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
        ({"queue": "elsewhere"}, {}, False),  # of another namespace; this one's queue is not defined
        ({"queue": "all"}, {"kueue_topology_levels": []}, False),
        ({"queue": "all"}, {"kueue_topology_levels": "{{ levels }}"}, False),
        ({}, {}, False),
    ],
)
def test_a_part_of_a_node_is_refused_if_the_queue_places_pods(given: dict[str, Any], changed: dict[str, Any], refused: bool) -> None:  # noqa: FBT001
    """Kueue could give two ranks the same node, but each needs a node of its own."""
    hosts, groups = {**HOSTVARS, "ctl": {**QUEUES, **changed}}, {**GROUPS, "kueue": ["ctl"]}
    pods = {f"kubernetes_{name}": value for name, value in given.items()}
    job = {"target": "kubernetes", **PODS, **pods, "nodes": 2, "gpus_per_node": 4}
    found = found_issues(a_job(**job), groups, hosts)

    assert [variable_of(issue) for issue in found] == ["workload_gpus_per_node"] * refused
    assert all("workload_gpus_per_node: the job uses 4 and n1 has 8" in str(issue) for issue in found)
    assert found_issues(a_job(**{**job, "nodes": 1}), groups, hosts) == []
    assert found_issues(a_job(**{**job, "gpus_per_node": 8}), groups, hosts) == []


def test_a_cluster_without_hosts_in_the_inventory_takes_any_number_of_nodes() -> None:
    """Only its scheduler knows the number."""
    groups = {"primus_watch": ["ctl"]}

    assert found_issues(a_job(target="kubernetes", nodes=64, gpus_per_node=8, **PODS), groups, {}) == []
    assert candidates(a_job(target="kubernetes", **PODS), groups, {}) == ([], [])


def test_the_command_line_of_the_trainer() -> None:
    """Presets come first, then settings, which win over them, then data and the checkpoint folder."""
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
    """Booleans are written in lower case."""
    job = made(venv="/opt/train", cli_options=["--hooks=/jfs/hooks"], environment={"OMP_NUM_THREADS": 4, "DEBUG": True})

    assert job["options"] == ["--venv=/opt/train", "--hooks=/jfs/hooks"]
    assert job["environment"] == {"OMP_NUM_THREADS": "4", "DEBUG": "true"}


def test_auto_chooses_slurm_if_the_cluster_has_slurm() -> None:
    """Otherwise Kubernetes without workload_node, else direct."""
    assert made(target="auto", slurm_partition="gpu")["slurm"] == {"partition": "gpu", "options": []}
    assert target(a_job(target="auto"), {**GROUPS, "slurm_node": []}) == "direct"
    assert target(a_job(target="auto"), {**GROUPS, "slurm_node": [], "workload_node": []}) == "kubernetes"
    assert target(a_job(target="auto"), {"primus_watch": ["ctl"]}) == "direct"


def test_new_ids_are_valid_and_differ() -> None:
    """Two submissions of one file are two jobs."""
    one, other = job_request.new_id("try"), job_request.new_id("try")

    assert one != other
    assert made(id=one)["id"] == one


@pytest.mark.parametrize("path", sorted(content.jobs_dir().glob("*.yml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("target", ["direct", "slurm", "kubernetes"])
def test_every_shipped_job_is_valid(path: Path, target: str) -> None:
    """It only needs a user, and an image for Kubernetes."""
    given = {name.removeprefix("workload_"): value for name, value in yaml.safe_load(path.read_text(encoding="utf-8")).items()}

    assert made(**given, **PODS, target=target)["name"] == path.stem.replace(".", "-")


def test_the_role_passes_every_variable_to_its_filters() -> None:
    """Otherwise a new variable would have no effect."""
    known = yaml.safe_load((content.roles_dir() / "workload" / "vars" / "main.yml").read_text(encoding="utf-8"))["_workload_job"]
    declared = {name for name, option in load_options().items() if option.owner == "workload"}

    assert set(known) == declared - {"workload_program", "workload_users"}
    assert {f"workload_{item.name}" for item in fields(job_request.JobRequest)} == set(known)


def test_the_folder_of_jobs_is_the_same_everywhere() -> None:
    """Two roles and two playbooks have the folder and the program."""
    options = load_options()
    folder, program = options["workload_folder"].default, options["primus_cli_program"].default
    text = (content.playbooks_dir() / "vars" / "primus_watch.yml").read_text(encoding="utf-8")

    assert (options["primus_watch_folder"].default, options["primus_watch_program"].default) == (folder, program)
    assert options["workload_program"].default == program
    assert f"workload_folder | default('{folder}')" in text
    assert f"primus_cli_program | default('{program}')" in text
    assert f"primus_cli_program | default('{program}')" in (content.playbooks_dir() / "workload.yml").read_text(encoding="utf-8")
