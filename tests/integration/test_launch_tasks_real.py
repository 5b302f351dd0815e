"""primus_bootstrap.launch.tasks: the registry, and tasks of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.launch_cli_rig import User

if TYPE_CHECKING:
    from pathlib import Path


def test_installed_package_adds_a_task_by_its_entry_point(tmp_path: Path) -> None:
    """The entry-point group is primus_cli.tasks; the task runs like any other."""
    user = User(tmp_path)
    site = tmp_path / "site"
    information = site / "extra_tasks-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-tasks\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[primus_cli.tasks]\ncount = extra_tasks:TASK\n")
    (site / "extra_tasks.py").write_text(
        "from primus_bootstrap.launch.tasks import HERE, Task\n\n"
        "def run(arguments):\n    print('counted', len(arguments))\n    return 0\n\n"
        "TASK = Task(name='count', meaning='Counts.', usage='', launcher=HERE, run=run)\n"
    )
    done = user.cli("direct", "--", "count", "a", "b", PYTHONPATH=str(site))
    shown = user.cli("tasks", PYTHONPATH=str(site))

    assert (done.returncode, done.stdout) == (0, "counted 2\n"), done.stderr
    assert "  count " in shown.stdout
