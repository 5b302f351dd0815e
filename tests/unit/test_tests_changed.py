"""Selection of the tests for a change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.changed import ROOT, concerns, is_affected, modules_of, unaffected_files


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ([], "left out"),
        (["roles/redis/tasks/main.yml"], "runs"),
        (["roles/redis_exporter/tasks/main.yml"], "left out"),
        (["docs/storage.md", "roles/redis"], "runs"),
        (["constraints.txt"], "runs"),
        (["primus_bootstrap/core/commands.py"], "runs"),
        (["tests/unit/test_x.py"], "left out"),
    ],
)
def test_change_below_a_path_selects_the_test(changed: list[str], wanted: str) -> None:
    """Whole folder names are compared; shared test files select every test."""
    assert concerns(changed, ["roles/redis/", "playbooks/day2/backup.yml"]) is (wanted == "runs")


def test_paths_of_long_tests_exist() -> None:
    """A renamed path would disable the selection."""
    named = {
        path
        for file in (ROOT / "tests").rglob("*.py")
        for words in re.findall(r"mark\.long\(([^)]*)\)", file.read_text(encoding="utf-8"))
        for path in re.findall(r'"([^"]+)"', words)
    } - {"roles/redis/"}

    assert named
    assert [path for path in sorted(named) if not Path(ROOT / path).exists()] == []


DIRECT = "tests/integration/test_launch_direct.py"


@pytest.mark.parametrize(
    ("test", "changed", "wanted"),
    [
        (DIRECT, "primus_bootstrap/launch/commandline/main.py", "runs"),
        (DIRECT, "primus_bootstrap/core/commands.py", "runs"),
        (DIRECT, DIRECT, "runs"),
        (DIRECT, "tests/integration/launch_cli_rig.py", "runs"),
        (DIRECT, "tests/waiting.py", "runs"),
        (DIRECT, "tests/integration/test_launch_replay.py", "left out"),
        (DIRECT, "primus_bootstrap/engine/run.py", "left out"),
        (DIRECT, "docs/day2.md", "left out"),
        ("tests/integration/test_bench_group_on_loopback.py", DIRECT, "runs"),
        ("tests/integration/test_role_redis_start.py", "roles/redis/tasks/main.yml", "runs"),
        ("tests/integration/test_role_redis_start.py", "roles/munge/tasks/main.yml", "left out"),
        ("tests/kubernetes/test_queues.py", "roles/kube_common/tasks/main.yml", "runs"),
        ("tests/kubernetes/test_queues.py", "tests/kubernetes/charts/kueue/Chart.yaml", "runs"),
        ("tests/kubernetes/test_kubeadm_cluster.py", "tests/waiting.py", "runs"),
        ("tests/kubernetes/test_queues.py", "tests/kubernetes/test_helm_command.py", "left out"),
    ],
)
def test_change_in_the_area_of_a_file_selects_it(test: str, changed: str, wanted: str) -> None:
    """Its code, itself and the modules that it imports select it; other test files do not."""
    assert is_affected(test, [changed]) is (wanted == "runs")


def test_imported_modules_are_followed() -> None:
    """Directly and through other modules of the tests."""
    assert modules_of("tests/integration/test_watch_direct.py") >= {
        "tests/integration/test_watch_direct.py", "tests/integration/watch_rig.py", "tests/integration/sshd_rig.py",
        "tests/unit/engine_rig.py",
    }  # fmt: skip


def test_all_files_run_if_the_changes_are_unknown() -> None:
    """Without a commit to compare with, nothing is left out."""
    assert unaffected_files([DIRECT], None) == []
    assert unaffected_files([DIRECT], ["README.md"]) == [DIRECT]
