"""primus_bootstrap.cli.torch_check: what a submission finds out about torch on the hosts of a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.cli import torch_check
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.fleet.messages import Answer
from primus_bootstrap.launch.watch.job_spec import KUBERNETES, SLURM

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.fleet.messages import Task


def submit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: dict[str, int | None], *, target: str = SLURM, **values: Any
) -> list[str]:
    """Check a job whose hosts answer with these exit codes, None for a host that does not answer; return the commands that were sent."""
    sent: list[str] = []

    def ask(_cluster: object, targets: list[str], task: Task) -> list[Answer]:
        sent.append(task.command)
        return [Answer(host, exit_code=codes[host]) for host in targets]

    monkeypatch.setattr(torch_check, "ask_hosts", ask)
    monkeypatch.setattr(torch_check, "targets_of_limit", lambda _cluster, limit, _password: limit.split(","))
    monkeypatch.setattr(torch_check, "known_hosts_path", lambda _cluster: tmp_path / "known_hosts")
    variables = {"primus_cli_settings": {"direct": {"venv": "/opt/site"}}}
    cluster: Any = SimpleNamespace(path=tmp_path / "hosts.yaml", name="blue", view=SimpleNamespace(variables=lambda _host: variables))
    request: Any = SimpleNamespace(**{"venv": "/opt/train", "cli_options": (), "environment": {}, **values})
    torch_check.check_torch(cluster, request, target, list(codes), become_password="", timeout_s=5)
    return sent


@pytest.mark.parametrize(
    ("codes", "what"),
    [
        ({"n1": 0, "n2": 127}, "/opt/train/bin/python does not exist on n2"),
        ({"n1": 9, "n2": 9}, "/opt/train/bin/python has no torch on n1, n2"),
    ],
    ids=["no such Python", "no torch"],
)
def test_a_host_without_torch_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: dict[str, int | None], what: str) -> None:
    """Nothing is queued, and the error names the hosts."""
    with pytest.raises(PlanError) as error:
        submit(monkeypatch, tmp_path, codes)

    assert error.value.what == f"the job cannot start: {what}"
    assert "set workload_venv" in error.value.fix


@pytest.mark.parametrize("code", [0, None, 1, 126], ids=["has torch", "no answer", "failed", "not allowed"])
def test_what_is_unknown_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int | None) -> None:
    """The launcher on the host finds out."""
    assert len(submit(monkeypatch, tmp_path, {"n1": code})) == 1


def test_eight_hosts_are_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A submission to a thousand hosts does not wait for all of them."""
    with pytest.raises(PlanError) as error:
        submit(monkeypatch, tmp_path, {f"n{number}": 9 for number in range(12)})

    assert error.value.what.endswith("n6, n7")


@pytest.mark.parametrize(
    ("values", "python"),
    [({}, "/opt/train/bin/python -c"), ({"venv": ""}, "/opt/site/bin/python -c")],
    ids=["of the job", "of the site"],
)
def test_the_python_of_the_job_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: dict[str, Any], python: str) -> None:
    """workload_venv counts more than the settings of primus-cli."""
    (command,) = submit(monkeypatch, tmp_path, {"n1": 0}, **values)

    assert python in command


@pytest.mark.parametrize(
    "values",
    [
        {"target": KUBERNETES},
        {"cli_options": ("--python=/usr/bin/python3.12",)},
        {"cli_options": ("--venv", "/opt/other")},
        {"environment": {"PYTHONPATH": "/opt/packages"}},
    ],
    ids=["an image", "another Python", "another environment", "other packages"],
)
def test_a_job_with_another_python_is_not_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, values: dict[str, Any]) -> None:
    """A wrong accusation would keep a good job from running."""
    assert submit(monkeypatch, tmp_path, {"n1": 9}, **values) == []


def test_the_fix_for_a_lab_creates_its_hosts_with_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mounts of existing hosts cannot change."""
    (tmp_path / ".primus/blue").mkdir(parents=True)
    (tmp_path / ".primus/blue/lab.json").touch()

    with pytest.raises(PlanError) as error:
        submit(monkeypatch, tmp_path, {"n1": 127})

    assert f"lab up --torch --name blue --dir {tmp_path}" in error.value.fix
    with pytest.raises(PlanError) as error:
        submit(monkeypatch, tmp_path, {"n1": 127}, venv="/opt/mine")
    assert "lab up" not in error.value.fix
