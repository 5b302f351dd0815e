"""Replay: hooks, patches and plug-ins of a run come from its snapshot, and the replay fails without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.launch_cli_rig import User

if TYPE_CHECKING:
    from pathlib import Path

PLUGIN = """
import beside
from primus_bootstrap.launch.plugins import task


@task("say", meaning="Print a word.", usage="WORD")
def say(arguments):
    print("plug-in", *arguments, beside.WORD)
"""


def started(tmp_path: Path) -> User:
    """Run a program with a hook of the project, a patch and a program, in the run folder `first`."""
    user = User(tmp_path)
    user.program("hooks/10_first.sh", "echo env.HOOK=original\n")
    user.program("fix.sh", "echo env.PATCH=original\n")
    user.program("p.sh", "#!/bin/sh\necho got $HOOK $PATCH $NEW\n")
    done = user.cli("--output", "first", "direct", "--single", "--script", "p.sh", "--patch", "fix.sh", "--")
    assert "got original original" in done.stdout, done.stderr
    return user


def test_changed_and_missing_steps_are_taken_from_the_snapshot(tmp_path: Path) -> None:
    """A hook that was added later does not run. Only the state of the program's folder counts as a difference."""
    user = started(tmp_path)
    user.program("hooks/10_first.sh", "echo env.HOOK=changed\n")
    user.program("hooks/20_added.sh", "echo env.NEW=added\n")
    (user.project / "fix.sh").unlink()
    again = user.cli("--replay", "first", "--output", "second")

    assert again.returncode == 0, again.stdout + again.stderr
    assert "got original original\n" in again.stdout
    assert [line for line in again.stdout.splitlines() if line.startswith("replay:") and "code: files of" not in line] == []
    assert "hooks/10_first.sh has changed; the copy in the snapshot is used" in again.stderr
    assert "fix.sh no longer exists; the copy in the snapshot is used" in again.stderr


def test_a_replay_without_a_step_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Neither the original file nor its copy exists; nothing is started."""
    user = started(tmp_path)
    (user.project / "fix.sh").unlink()
    (user.project / "hooks/10_first.sh").unlink()
    for name in ("fix.sh", "10_first.sh"):
        next((user.project / "first/snapshot/files").glob(f"*-{name}")).unlink()
    again = user.cli("--replay", "first", "--output", "second")

    assert (again.returncode, (user.project / "second").exists()) == (3, False)
    assert "the replay of first lacks hooks, patches or plug-ins of the original run" in again.stderr
    for name in ("hooks/10_first.sh", "fix.sh"):
        assert f"{user.project / name} no longer exists, and the snapshot has no complete copy of it" in again.stderr


def test_a_plug_in_is_restored_with_its_modules(tmp_path: Path) -> None:
    """The copies keep their names, so that they find each other. A replay of the replay works, too."""
    user = User(tmp_path)
    user.program("primus_plugins/say.py", PLUGIN)
    user.program("primus_plugins/beside.py", "WORD = 'original'\n")
    first = user.cli("--output", "first", "direct", "--", "say", "hello")
    user.program("primus_plugins/beside.py", "WORD = 'changed'\n")
    (user.project / "primus_plugins/say.py").unlink()
    second = user.cli("--replay", "first", "--output", "second")
    third = user.cli("--replay", "second", "--output", "third")

    for done in (first, second, third):
        assert "plug-in hello original" in done.stdout, done.stdout + done.stderr
    (user.project / "first/snapshot/files/plugins/say.py").unlink()
    without = user.cli("--replay", "first", "--output", "fourth")
    assert (without.returncode, "say.py no longer exists, and the snapshot has no complete copy of it" in without.stderr) == (3, True)


def test_a_plug_in_travels_with_the_run(tmp_path: Path) -> None:
    """`primus-cli` in a container or on another node finds the copy in the run folder; without the original it still runs."""
    user = User(tmp_path)
    user.program("own/say.py", PLUGIN)
    user.program("own/beside.py", "WORD = 'copied'\n")
    user.fake_program("docker", '#!/bin/sh\nwhile [ "$1" != --entrypoint= ]; do shift; done\nshift 2\nmv own elsewhere\nexec "$@"\n')
    done = user.cli("--output", "first", "container", "--image", "any", "--gpus", "none", "--plugin", "own", "--", "say", "hello")

    assert "plug-in hello copied" in done.stdout, done.stdout + done.stderr
