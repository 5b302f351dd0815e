"""The wheel carries what git tracks, and works from an installed copy in another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENT = ("playbooks", "roles", "inventory", "workloads", "ansible.cfg")
LEFT_OUT = ("roles/*/molecule/*",)


def _run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ANSIBLE_CONFIG")}
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the environment's own hatchling."""
    out = tmp_path_factory.mktemp("wheel")
    done = _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own that borrows only the dependencies of this one."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    own = [path for path in sys.path if path.endswith("site-packages")]
    # A .pth of ours would bring the editable install back: only plain paths are handed over.
    (site / "dependencies.pth").write_text("\n".join(own) + "\n")
    program = home / "primus-bootstrap"
    program.write_text(f"#!{home}/venv/bin/python\nfrom primus_bootstrap.cli.main import main\nmain()\n")
    program.chmod(0o755)
    return program


def _tracked() -> set[str]:
    done = _run("git", "ls-files", "-z", cwd=ROOT)
    if done.returncode:
        pytest.skip(f"git ls-files failed, so there is nothing to compare with: {done.stderr.strip()}")
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}


def test_the_wheel_holds_what_git_tracks(wheel: Path) -> None:
    """Each tracked file of the package and its content is in the wheel, and nothing else is, folders of the user in `inventory` apart."""
    topologies = {name.split("/")[1] for name in _tracked() if name.startswith("inventory/")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    own = "primus_bootstrap/content/inventory/"
    got = {name for name in names if not name.startswith(own) or name.removeprefix(own).split("/")[0] in topologies}

    expected = {name for name in _tracked() if name.startswith("primus_bootstrap/")}
    for name in _tracked():
        if name.split("/")[0] in CONTENT and not any(fnmatch(name, pattern) for pattern in LEFT_OUT):
            expected.add(f"primus_bootstrap/content/{name}")
    assert got == expected


def test_an_installed_copy_works_elsewhere(installed: Path, tmp_path: Path) -> None:
    """`init`, `validate` and `plan` work from the wheel in a folder that knows nothing of the checkout."""
    verbs = ["--version", "init --template mi300x site", "validate site/hosts.yaml", "plan site/hosts.yaml"]
    for arguments in map(str.split, verbs):
        done = _run(str(installed), *arguments, cwd=tmp_path)

        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    where = _run(str(installed.parent / "venv/bin/python"), "-c", "import primus_bootstrap; print(primus_bootstrap.__file__)", cwd=tmp_path)
    assert str(installed.parent) in where.stdout
