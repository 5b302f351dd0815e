"""Wrong arguments and files of a task are refused by every runtime, before anything is started or queued, and in dry runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.commandline import main
from primus_bootstrap.launch.runtimes import container, container_image, direct, slurm
from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
from primus_bootstrap.launch.settings import parser
from primus_bootstrap.launch.settings.layered_settings import SettingsFiles, resolve
from primus_bootstrap.launch.tasks import all_tasks
from tests.integration.launch_cli_rig import User
from tests.unit import launch_rig

if TYPE_CHECKING:
    from primus_bootstrap.launch.run_plan import Plan

RUNTIMES = {
    "direct": "direct --nproc 2 --",
    "container": "container --image i --gpus none --",
    "srun": "slurm srun -N 2 --",
    "sbatch": "slurm sbatch -N 2 --",
    "srun with containers": "slurm srun -N 2 -- container --image i --",
}
MISTAKES = {
    "train pretrain --config nosuch.yaml": "--config nosuch.yaml: no such file or preset",
    "train pretrain --config bad.yaml": "bad.yaml:2: train.stepz: no such setting",
    "train pretrain train.micro_batch=0": "argument train.micro_batch=0: train.micro_batch: found '0'",
    "train posttrain train.stepz=3": "argument train.stepz=3: train.stepz: no such setting",
    "train pretrain --config primus.yaml": "primus.yaml: this is an experiment file of AMD Primus",
    "benchmark gemm --shape x": "benchmark gemm: --shape: unknown option",
    "benchmark gem": "no such benchmark: gem",
    "benchmark --list --bogus": "benchmark --list: unexpected argument: --bogus",
    "analyze topology --vizualize": "analyze topology: --vizualize: unknown option",
    "analyze topology --visualize x.png": "--visualize x.png: unknown format",
    "analyze runs/1 --bogus": "analyze: --bogus: unknown option",
    "analyze": "analyze: the following arguments are required: RUN_FOLDER",
    "train": "no such task: train",
    "preflight --gpuu": "preflight: --gpuu: unknown option",
    "preflight --checks gpuu": "--checks: no check matches gpuu",
}


def plan(user: User, words: str, *, dry: bool = True, root: Path | None = None, **variables: str) -> Plan:
    """Plan a command line of the user, who has docker and no Slurm, with more variables of the environment."""
    user.fake_program("docker", "#!/bin/sh\n")
    line = parser.parse(["--dry-run", *words.split()] if dry else words.split(), {})
    environment = {**user.full_environment(), "PRIMUS_CLI_SLURM_PYXIS": "off", **variables}
    settings = resolve(SettingsFiles(), {"PRIMUS_CLI_SLURM_PYXIS": "off"}, line.flags)
    request = LaunchRequest(line.words, tuple(words.split()), settings, environment, user.project, root or user.folder / "root")
    runtime = {"direct": direct, "container": container, "slurm": slurm}[line.runtime]
    made: Plan = runtime.make_plan(line, request)
    return made


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Return a user with configuration files."""
    user = User(tmp_path)
    for name, text in {
        "bad.yaml": "train:\n  stepz: 3\n",
        "good.yaml": "train: {steps: 3}\n",
        "primus.yaml": "modules: {pre_trainer: {framework: megatron}}\n",
    }.items():
        (user.project / name).write_text(text)
    return user


@pytest.mark.parametrize("value", ["x", "{}", "[1]", "[]", "null", '"text"'])
def test_a_foreign_variable_is_not_taken_for_the_typed_command(user: User, value: str) -> None:
    """An outer runtime forwards the typed command in PRIMUS_COMMAND; anything else in it is ignored."""
    words = "direct --nproc 2 -- preflight"
    assert plan(user, words, PRIMUS_COMMAND=value).command == tuple(words.split())
    assert plan(user, words, PRIMUS_COMMAND='["slurm", "srun"]').command == ("slurm", "srun")


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)
@pytest.mark.parametrize(("words", "message"), MISTAKES.items())
def test_every_runtime_refuses(user: User, runtime: str, words: str, message: str) -> None:
    """Nothing is created."""
    with pytest.raises(UsageError) as raised:
        plan(user, f"{runtime} {words}")

    assert raised.value.what.startswith(message)
    assert not (user.project / "runs").exists()


def test_a_wrong_argument_is_reported_before_a_problem_of_the_machine(user: User) -> None:
    """Its GPUs are unknown here, and the fix of that would not help."""
    with pytest.raises(UsageError, match="no such benchmark"):
        plan(user, "direct -- benchmark gem")
    with pytest.raises(PlanError, match="number of GPUs of this host is unknown"):
        plan(user, "direct -- benchmark gemm")


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=RUNTIMES)
@pytest.mark.parametrize(
    "words", ["train pretrain --config good.yaml train.steps=4", "benchmark gemm -M 64 --dtype bf16", "preflight check --gpu"]
)
def test_every_runtime_accepts(user: User, runtime: str, words: str) -> None:
    """The same command line runs everywhere; the nodes and the container get the words as typed."""
    made = plan(user, f"{runtime} {words}")
    script = "".join(text for _, text in made.files)

    assert made.words == tuple(words.split())
    assert runtime.startswith("direct") or words in f"{' '.join(made.argv)}\n{script}"


def test_a_file_in_a_mount_is_checked_and_one_of_the_image_is_not(user: User) -> None:
    """A mount may have another name in the container. The plan says what was not checked."""
    (user.folder / "data").mkdir()
    (user.folder / "data" / "bad.yaml").write_text("train: {stepz: 3}\n")
    start = f"container --image i --gpus none --mount {user.folder}/data:/data -- train pretrain --config"
    with pytest.raises(UsageError, match=r"/data/bad.yaml:1: train.stepz: no such setting"):
        plan(user, f"{start} /data/bad.yaml")
    with pytest.raises(UsageError, match=r"--config /data/none.yaml: no such file or preset"):
        plan(user, f"{start} /data/none.yaml")

    assert any(note.startswith("--config /opt/x.yaml is in no mounted folder") for note in plan(user, f"{start} /opt/x.yaml").notes)


def test_a_folder_that_only_the_nodes_have_is_accepted_by_slurm(user: User) -> None:
    """The nodes start the containers; with the runtime container, this machine does."""
    words = "--volume /local/data --image i -- train pretrain --config /local/data/x.yaml"
    made = plan(user, f"slurm srun -N 2 -- container {words}")

    assert "--volume=/local/data" in made.argv
    assert any("--config /local/data/x.yaml is in no mounted folder of this machine" in note for note in made.notes)
    with pytest.raises(UsageError, match="--volume /local/data: /local/data does not exist"):
        plan(user, f"container --gpus none {words}")


def test_a_mount_in_the_form_of_docker_is_explained(user: User) -> None:
    """`--mount` is the name that AMD Primus has for --volume."""
    with pytest.raises(UsageError) as raised:
        plan(user, "container --image i --gpus none --mount type=bind,source=/a,target=/b -- preflight")

    assert raised.value.fix == "write SOURCE:TARGET; for the engine's own form pass --engine-arg=--mount=type=bind,source=/a,target=/b"
    assert f"--volume={user.project}:/b:ro" in plan(user, f"container --image i --gpus none --mount {user.project}:/b:ro -- preflight").argv


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ("/:", "the target '' is not an absolute path"),
        ("/:rel", "the target 'rel' is not an absolute path"),
        ("/:/", "a mount cannot replace / of the container"),
        ("/:/data:rx", "unknown mode 'rx'"),
        (":/x", "not SOURCE"),
        ("/:/data:ro:z", "not SOURCE"),
    ],
)
def test_a_mount_that_the_engine_refuses_is_an_error(user: User, mount: str, message: str) -> None:
    """On the machine where it is typed, with the option that was typed."""
    for start in ("container --image i --gpus none", "slurm srun -N 2 -- container --image i"):
        with pytest.raises(UsageError) as raised:
            plan(user, f"{start} --mount {mount} -- preflight")

        assert raised.value.what.startswith(f"--mount {mount}: {message}")


def test_two_mounts_of_one_target_are_an_error(user: User) -> None:
    """The same mount twice is none."""
    start = "container --image i --gpus none --mount /usr:/data"

    assert "--volume=/usr:/data" in plan(user, f"{start} --mount /usr:/data -- preflight").argv
    with pytest.raises(UsageError, match="--mount /etc:/data: /usr:/data has the same target"):
        plan(user, f"{start} --mount /etc:/data -- preflight")


def test_every_task_checks_its_arguments() -> None:
    """A mistake costs no time in a queue."""
    assert [name for name, task in all_tasks().items() if task.check is None] == []


@pytest.mark.parametrize("launcher", ["srun", "sbatch"])
def test_a_slurm_run_can_be_planned_without_slurm(user: User, launcher: str) -> None:
    """A dry run prints the plan on any machine; the run itself needs Slurm."""
    user = replace(user, environment={**user.environment, "PATH": str(user.folder)})  # the tests may run on a machine that has Slurm
    made = plan(user, f"slurm {launcher} -N 4 -- preflight")

    assert made.argv[0] == launcher
    assert f"{launcher} is not on the PATH of this machine; run the command on one that has Slurm" in made.notes
    with pytest.raises(PlanError, match=f"{launcher} is not on the PATH"):
        plan(user, f"slurm {launcher} -N 4 -- preflight", dry=False)


@pytest.mark.parametrize(
    ("machine", "image"), [("mi300x-roce", "docker.io/rocm/primus:v26.5"), ("h200-ib", "nvcr.io/nvidia/pytorch:25.12-py3")]
)
def test_a_container_has_a_default_image_per_vendor(user: User, machine: str, image: str) -> None:
    """The plan names the image and its source; --image and DOCKER_IMAGE replace it."""
    root = launch_rig.expand(machine, user.folder / "root")
    made = plan(user, "container -- preflight", root=root)
    given = plan(user, "container --image mine:1 -- preflight", root=root)

    assert image in made.prefix
    assert any(note.startswith(f"image: {image} (default for ") and "https://" in note for note in made.notes)
    assert "mine:1" in given.prefix
    assert "image: mine:1 (flag --image)" in given.notes


def test_a_machine_without_gpus_has_no_default_image(user: User) -> None:
    """`--gpus` names the vendor, for example for a plan on a laptop."""
    root = launch_rig.expand("cpu", user.folder / "root")
    with pytest.raises(UsageError, match="no image is set, and there is no default for a machine without GPUs"):
        plan(user, "container -- preflight", root=root)

    assert container_image.defaults()["amd"]["image"] in plan(user, "container --gpus amd -- preflight", root=root).prefix


def test_apptainer_gets_a_default_image_that_it_can_pull() -> None:
    """It needs the scheme docker://."""
    settings = resolve(SettingsFiles(), {}, ())

    assert container_image.chosen(settings, "amd", "apptainer")[0] == f"docker://{container_image.defaults()['amd']['image']}"


def test_the_nodes_of_a_slurm_run_choose_the_image(user: User) -> None:
    """A login node has no GPUs. With --gpus the plan names the image."""
    notes = plan(user, "slurm srun -N 2 -- container -- preflight").notes
    named = plan(user, "slurm srun -N 2 -- container --gpus nvidia -- preflight").notes

    assert any(note.startswith("image: each node chooses the default for its GPUs: docker.io/rocm/primus") for note in notes)
    assert any(note.startswith("image: nvcr.io/nvidia/pytorch:25.12-py3 (default for NVIDIA GPUs") for note in named)


@pytest.mark.parametrize("vendor", container_image.defaults())
def test_the_default_images_are_pinned_and_documented(vendor: str) -> None:
    """By a tag that is not latest, with a source, in the help and in the manual."""
    entry = container_image.defaults()[vendor]
    manual = (Path(__file__).resolve().parents[2] / "docs" / "primus-cli.md").read_text("utf-8")

    assert entry["image"].rpartition(":")[2] not in ("", "latest")
    assert entry["source"].startswith("https://")
    assert entry["image"] in manual
    assert entry["image"] in parser.flags_of("container")["--image"].meaning


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("direct -- preflight --help", "usage: primus-cli preflight "),
        ("direct -- preflight -h", "usage: primus-cli preflight "),
        ("slurm srun -N 8 -- benchmark gemm --help", "usage: primus-cli direct -- benchmark gemm "),
        ("container -- benchmark --help", "primus-cli RUNTIME -- benchmark NAME"),
        ("direct -- train pretrain --help", "usage: primus-cli direct -- train pretrain "),
        ("direct -- train --help", "  train posttrain  Fine-tune"),
        ("direct -- --help", "  analyze "),
    ],
)
def test_the_help_of_a_task_only_prints(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On every runtime, without an engine, Slurm or a run folder."""
    monkeypatch.chdir(tmp_path)
    code = main.main(words.split())
    output = capsys.readouterr()

    assert (code, output.err) == (0, "")
    assert output.out.startswith(expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"), [("benchmark gem --help", "no such benchmark: gem"), ("train pretrian -h", "no such task: train")]
)
def test_the_help_of_an_unknown_name_is_an_error(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest name."""
    assert main.main(["direct", "--", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_task_without_a_runtime_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It was an unknown verb."""
    assert main.main(["benchmark", "gemm", "-M", "64"]) == 2
    assert "fix: primus-cli direct -- benchmark gemm -M 64\n" in capsys.readouterr().err


def test_an_experiment_file_of_amd_primus_is_no_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--config` before the runtime names settings of primus-cli."""
    file = tmp_path / "exp.yaml"
    file.write_text("work_group: amd\nmodules: {pre_trainer: {framework: megatron}}\n")

    assert main.main(["--config", str(file), "--dry-run", "direct", "--", "preflight"]) == 2
    assert f"{file}: this is an experiment file of AMD Primus\n  fix: primus-cli config convert {file}\n" in capsys.readouterr().err
