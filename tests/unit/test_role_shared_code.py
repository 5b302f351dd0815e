"""Shared code of modules that several roles use: files and links of a host, programs, units, and containers."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.core.commands import Completed
from tests.unit.role_module import load_shared

files: Any = load_shared("host_files")
units: Any = load_shared("unit_properties")
programs: Any = load_shared("host_programs")
containers: Any = load_shared("container_kind")


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    """Its folder is created; no temporary file is left."""
    path = tmp_path / "etc" / "hosts"

    files.replace_file(path, "a\n", mode=0o600)

    assert (path.read_text("utf-8"), path.stat().st_mode & 0o777) == ("a\n", 0o600)
    assert [found.name for found in path.parent.iterdir()] == ["hosts"]


@pytest.mark.parametrize("owner", [None, (os.getuid(), os.getgid())])
def test_a_mounted_file_is_rewritten_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: tuple[int, int] | None) -> None:
    """A container mounts /etc/hosts, and the kernel refuses to replace a mount."""
    path = tmp_path / "hosts"
    path.write_text("old\n", encoding="utf-8")
    inode = path.stat().st_ino

    def refuse(_: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, "busy", str(target))

    monkeypatch.setattr(Path, "replace", refuse)

    files.replace_file(path, b"new\n", mode=0o644, owner=owner)

    assert (path.read_text("utf-8"), path.stat().st_ino) == ("new\n", inode)


def test_another_error_names_the_file(tmp_path: Path) -> None:
    """The user does not know the name of the temporary file."""
    (tmp_path / "hosts").mkdir()

    with pytest.raises(OSError, match="directory") as raised:
        files.replace_file(tmp_path / "hosts", "a\n", mode=0o644)

    assert raised.value.filename == str(tmp_path / "hosts")


@pytest.mark.parametrize("before", ["none", "file", "link"])
def test_a_link_replaces_what_is_there(tmp_path: Path, before: str) -> None:
    """The rest of an interrupted run does not matter."""
    link = tmp_path / "etc" / "localtime"
    link.parent.mkdir()
    (link.parent / ".localtime.primus-new").touch()
    if before == "file":
        link.touch()
    elif before == "link":
        link.symlink_to("/nowhere")

    files.replace_link(link, "/usr/share/zoneinfo/UTC")

    assert [(found.name, str(found.readlink())) for found in link.parent.iterdir()] == [("localtime", "/usr/share/zoneinfo/UTC")]


def test_properties_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call reads all of them; a value may contain `=`."""
    calls: list[list[str]] = []

    def answer(argv: list[str], *, timeout_s: float) -> Completed:
        calls.append(argv)
        return Completed(0, f"Result=success\nExecStart=a=b\nLimit={timeout_s:g}\n", "")

    monkeypatch.setattr(units, "run_command", answer)

    assert units.unit_properties("a.service", "Result", "ExecStart") == {"Result": "success", "ExecStart": "a=b", "Limit": "15"}
    assert calls == [["systemctl", "show", "--property=Result,ExecStart", "a.service"]]


def test_a_systemd_that_does_not_answer_has_no_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program and a time-out are errors of the operating system."""

    def fail(*_: object, **__: object) -> Completed:
        raise TimeoutError("systemctl did not end within 15 s")

    monkeypatch.setattr(units, "run_command", fail)

    assert units.unit_properties("a.service", "Result") == {}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Completed(3, "a\n", "b\n"), (3, "a\nb")),
        (FileNotFoundError(2, "No such file"), (127, "chronyc is not installed")),
        (PermissionError(13, "Permission denied"), (127, "chronyc cannot be run: Permission denied")),
        (TimeoutError("chronyc did not end within 300 s"), (124, "chronyc did not end within 300 s")),
    ],
)
def test_a_program_that_gives_no_answer_has_the_code_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, answer: Completed | OSError, expected: tuple[int, str]
) -> None:
    """Its output is in English, whatever the locale of the host is."""

    def run(_: list[str], *, timeout_s: float, env: dict[str, str]) -> Completed:
        assert (timeout_s, env["LC_ALL"]) == (300, "C")
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(programs, "run_command", run)

    assert programs.run_program(["chronyc", "tracking"]) == expected


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        ("run/.containerenv", "", "podman"),
        (".dockerenv", "", "docker"),
        ("etc/hosts", "", ""),
    ],
)
def test_a_container_is_detected(tmp_path: Path, path: str, text: str, kind: str) -> None:
    """The kind is known from a file of systemd or of the engine."""
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text, encoding="utf-8")

    assert containers.container_kind(tmp_path) == kind
