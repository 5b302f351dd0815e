"""primus_bootstrap.launch.watch: the plug-ins of a job travel in job.json to its hosts."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.core.structured import InvalidDataError
from primus_bootstrap.launch.plugins.plugin_discovery import plugin_tasks, sources
from primus_bootstrap.launch.tasks import find_task
from primus_bootstrap.launch.watch import attempt, job_folder, job_request, job_state
from primus_bootstrap.launch.watch.job_request import InventoryFacts
from primus_bootstrap.launch.watch.job_spec import Host, parse_job
from tests.unit.test_launch_plugins import COUNT, write

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.watch.job_spec import Job

INVENTORY = InventoryFacts({"primus_watch": ["s1"], "workload_node": ["h1"]}, {"h1": {"ansible_host": "10.0.0.1"}})


def made(**values: Any) -> Job:
    """Build a job on one host from the role's defaults and these variables."""
    defaults = yaml.safe_load((content.content_root() / "roles/workload/defaults/main.yml").read_text())
    own = {"workload_name": "a", "workload_user": pwd.getpwuid(os.geteuid()).pw_name, "workload_task": ["count", "lines", "x"]}
    return job_request.build_job(job_request.read_request({**defaults, **own, **values}), INVENTORY)


def test_the_files_are_in_the_job(tmp_path: Path) -> None:
    """A file and a folder with a module; a job without plug-ins has no such key, because earlier releases do not know it."""
    file = write(tmp_path / "count.py")
    write(tmp_path / "more/part/shared.py", "VALUE = 1\n")
    job = made(workload_plugins=[str(file), str(tmp_path / "more")])

    assert job.plugins == {"00/count.py": COUNT, "01/part/shared.py": "VALUE = 1\n"}
    assert parse_job(job.to_json(), origin="") == job
    assert "plugins" not in made().to_json()


def test_a_node_writes_them_and_its_launcher_finds_the_task(tmp_path: Path) -> None:
    """Into the run folder, which all nodes of the job share."""
    job = made(workload_plugins=[str(write(tmp_path / "own/count.py"))])
    (tmp_path / "jobs").mkdir()
    folder, _ = job_folder.create(tmp_path / "jobs", json.dumps(job.to_json()))
    state = job_state.State(job.id, phase=job_state.STARTING, attempt=1, hosts=(Host("h1", "10.0.0.1"),), attempts=(job_state.Attempt(1),))
    attempt.write_plugins(folder.job(), folder)
    words = attempt.launcher_words(folder.job(), state, folder, 0, "10.0.0.1")
    option = next(word for word in words if word.startswith("--plugin="))
    task, arguments = find_task(words[words.index("--") + 1 :], plugin_tasks(sources([option.partition("=")[2]], tmp_path)))

    assert option == f"--plugin={folder.run}/plugins"
    assert (task.name, arguments, task.source) == ("count lines", ("x",), f"{folder.run}/plugins/00/count.py")
    assert not [word for word in attempt.launcher_words(replace(job, plugins={}), state, folder, 0, "h") if "plugin" in word]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own/count.py", "own/count.py is not an absolute path"),
        ("{}/nosuch.py", "not a .py file or a folder, or not found"),
        ("{}/empty.py", "no function has the decorator task"),
    ],
)
def test_a_wrong_plug_in_is_reported_before_a_host_is_contacted(tmp_path: Path, path: str, message: str) -> None:
    """By the name of the variable."""
    write(tmp_path / "empty.py", "x = 1\n")
    with pytest.raises(InvalidDataError, match=rf"workload_plugins: .*{message}"):
        made(workload_plugins=[path.format(tmp_path)])


@pytest.mark.parametrize("name", ["../x.py", "/etc/x.py", "a/../../x.py", ".hidden.py", "x.sh"])
def test_no_file_of_a_job_can_be_outside_its_folder(name: str) -> None:
    """job.json may come from another program."""
    with pytest.raises(InvalidDataError, match="plugins"):
        parse_job({**made().to_json(), "plugins": {name: ""}}, origin="")
