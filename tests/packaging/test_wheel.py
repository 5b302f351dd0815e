"""The wheel contains the files that git tracks, and works when it is installed."""

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
CONTENT = ("playbooks", "plugins", "roles", "inventory", "workloads", "ansible.cfg")
EXCLUDED = ("roles/*/molecule/*",)


def _run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ANSIBLE_CONFIG")}
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the environment's hatchling."""
    out = tmp_path_factory.mktemp("wheel")
    done = _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment that uses the dependencies of this one."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    # Plain paths only: existing .pth files would add the editable install.
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    program = home / "primus-bootstrap"
    program.write_text(f"#!{home}/venv/bin/python\nfrom primus_bootstrap.cli.main import main\nmain()\n")
    program.chmod(0o755)
    return program


def _tracked() -> set[str]:
    done = _run("git", "ls-files", "-z", cwd=ROOT)
    if done.returncode:
        pytest.skip(f"git ls-files failed: {done.stderr.strip()}")
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}


def test_the_wheel_contains_the_tracked_files(wheel: Path) -> None:
    """The wheel contains exactly the tracked files of the package and its content, except user folders in `inventory`."""
    topologies = {name.split("/")[1] for name in _tracked() if name.startswith("inventory/")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    inventory = "primus_bootstrap/content/inventory/"
    got = {name for name in names if not name.startswith(inventory) or name.removeprefix(inventory).split("/")[0] in topologies}

    expected = {name for name in _tracked() if name.startswith("primus_bootstrap/")}
    for name in _tracked():
        if name.split("/")[0] in CONTENT and not any(fnmatch(name, pattern) for pattern in EXCLUDED):
            expected.add(f"primus_bootstrap/content/{name}")
    assert got == expected


def test_an_installed_copy_works(installed: Path, tmp_path: Path) -> None:
    """`init`, `validate` and `plan` of the wheel work without the checkout."""
    verbs = ["--version", "init --template mi300x site", "validate site/hosts.yaml", "plan site/hosts.yaml"]
    for arguments in map(str.split, verbs):
        done = _run(str(installed), *arguments, cwd=tmp_path)

        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    where = _run(str(installed.parent / "venv/bin/python"), "-c", "import primus_bootstrap; print(primus_bootstrap.__file__)", cwd=tmp_path)
    assert str(installed.parent) in where.stdout
