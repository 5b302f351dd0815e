"""primus_bootstrap.launch.runtimes.slurm: the options of srun and sbatch."""

from __future__ import annotations

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.runtimes.slurm import pyxis_image
from primus_bootstrap.launch.runtimes.slurm_options import check_typed, option_words


@pytest.mark.parametrize(
    ("image", "taken"),
    [
        ("ubuntu:22.04", "ubuntu:22.04"),
        ("rocm/primus:v26", "rocm/primus:v26"),
        ("docker.io/rocm/primus:v26", "rocm/primus:v26"),
        ("h:5000/a/b", "h:5000#a/b"),
        ("/x/y.sqsh", "/x/y.sqsh"),
        ("r.io#a", "r.io#a"),
    ],
)
def test_names_of_images_for_pyxis(image: str, taken: str) -> None:
    """Only a registry is separated by #; names of Docker Hub and of files are unchanged."""
    assert pyxis_image(image) == taken


def test_typed_options_take_precedence_over_settings() -> None:
    """A true value is a flag, false and null are omitted, and a typed option is not repeated in either spelling."""
    settings = {"partition": "gpu", "exclusive": True, "time": None, "requeue": False, "N": 4, "cpus_per_task": 8}

    assert option_words(settings, ("-p", "big", "--nodes=2")) == ("--exclusive", "--cpus-per-task=8", "-p", "big", "--nodes=2")
    assert option_words(settings, ()) == ("--partition=gpu", "--exclusive", "--nodes=4", "--cpus-per-task=8")
    with pytest.raises(UsageError, match="one launcher"):
        option_words({"ntasks": 4}, ())


@pytest.mark.parametrize(
    ("typed", "word", "fix"),
    [
        ("sbtach -N 2", "sbtach", "did you mean sbatch?"),
        ("hostname -N 2", "hostname", "write the task after --"),
        ("-N 2 hostname", "hostname", "write the task after --"),
        ("-N2 --exclusive --nodes=2 hostname", "hostname", "write the task after --"),
    ],
)
def test_a_word_that_slurm_would_run_is_an_error(typed: str, word: str, fix: str) -> None:
    """The nodes would run that program instead of primus-cli."""
    with pytest.raises(UsageError) as raised:
        check_typed(typed.split())

    assert raised.value.what == f"slurm: {word} is not an option; Slurm would run it as a program on the nodes"
    assert raised.value.fix.startswith(fix)


def test_values_of_options_are_accepted() -> None:
    """In both forms, and in the parts of a heterogeneous job."""
    check_typed(["-N", "2", "-p", "gpu", "--time", "2:00:00", "-w", "gpu[1-2]", "--exclusive", ":", "-N", "1", "--gres=gpu:8"])
