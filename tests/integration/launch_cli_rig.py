"""Run primus-cli as a user, in a process with its own environment and working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).resolve().parents[2]
START = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from primus_bootstrap.launch.commandline.main import main; sys.exit(main())",
)
_KEPT = ("LANG", "LC_ALL", "VIRTUAL_ENV")


@dataclass(frozen=True)
class User:
    """A user with a home and a project folder; the folder `programs` comes first on the PATH."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the folders."""
        for path in (self.home, self.project, self.programs):
            path.mkdir(exist_ok=True)

    @property
    def home(self) -> Path:
        """The home folder."""
        return self.folder / "home"

    @property
    def project(self) -> Path:
        """The working folder."""
        return self.folder / "project"

    @property
    def programs(self) -> Path:
        """A folder that comes first on the PATH."""
        return self.folder / "programs"

    @property
    def run_dir(self) -> Path:
        """The run folder of `run`."""
        return self.folder / "run"

    def full_environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the user's programs."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = f"{self.programs}:{Path(sys.executable).parent}:/usr/bin:/bin"
        return {**kept, "HOME": str(self.home), "PATH": path, **self.environment, **more}

    def program(self, name: str, text: str) -> Path:
        """Write an executable file into the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def fake_program(self, name: str, text: str) -> Path:
        """Write a program that comes first on the PATH."""
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def cli(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run primus-cli to its end."""
        command = [*START, *words]
        environment = self.full_environment(**more)
        return subprocess.run(
            command,
            cwd=self.project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start primus-cli."""
        return subprocess.Popen(
            [*START, *words],
            cwd=self.project,
            env=self.full_environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, script: Path, *options: str, arguments: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program as one process, in `run_dir`."""
        words = ("--output", str(self.run_dir), "direct", "--single", "--script", str(script), *options, "--", *arguments)
        return self.cli(*words, **more)


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    until(path.exists, path)
