"""primus_bootstrap.launch.runtimes.container: the engine options, and a run with a fake engine that executes the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.detect.gpus import MIXED, NONE, OK, UNKNOWN, Gpu, GpuFindings
from primus_bootstrap.launch.runtimes import container, container_devices
from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest
from primus_bootstrap.launch.settings.layered_settings import Given, SettingsFiles, resolve
from primus_bootstrap.launch.settings.parser import CommandLine
from tests.integration.launch_cli_rig import User

if TYPE_CHECKING:
    from pathlib import Path

# A fake engine: records its arguments, writes the container's id, and runs the command on this host.
ENGINE = """#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["HOME"] + "/engine.log", "a") as log:
    print(*words, sep="\\x1f", file=log)
if words[0] == "rm":
    sys.exit(0)
start = next(index for index, word in enumerate(words) if index and not word.startswith("-"))
for word in words[:start]:
    if word.startswith("--cidfile="):
        open(word.partition("=")[2], "w").write("c0ffee")
given = [word.partition("=")[2] for word in words[:start] if word.startswith("--env=")]
environment = {name: os.environ[name] for name in given if name in os.environ}
os.execvpe(words[start + 1], words[start + 1 :], {**environment, "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]})
"""


def card(vendor: str) -> Gpu:
    """Return a GPU of a vendor."""
    return Gpu("a", vendor, "", "", ("X",), "", 1, "module", virtual=False, numa_node=0)


def test_devices_depend_on_vendor_and_host(tmp_path: Path) -> None:
    """Devices that do not exist on the host get no option."""
    bare = container_devices.words("docker", "amd", tmp_path)
    for name in ("dev/kfd", "dev/dri/renderD128"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode=0o660)
    (tmp_path / "dev/infiniband").mkdir()
    group = (tmp_path / "dev/kfd").stat().st_gid

    assert bare == ("--security-opt=seccomp=unconfined",)
    assert container_devices.words("docker", "amd", tmp_path) == (
        "--device=/dev/kfd",
        "--device=/dev/dri",
        f"--group-add={group}",
        "--security-opt=seccomp=unconfined",
        "--device=/dev/infiniband",
        "--cap-add=IPC_LOCK",
    )
    assert container_devices.words("docker", "nvidia", tmp_path / "sys") == ("--gpus=all",)
    assert container_devices.words("podman", "nvidia", tmp_path / "sys") == ("--device=nvidia.com/gpu=all",)
    assert [container_devices.words("apptainer", vendor, tmp_path) for vendor in ("amd", "nvidia", "none")] == [("--rocm",), ("--nv",), ()]


def test_an_unknown_vendor_is_an_error() -> None:
    """If the vendor is unknown, the user must pass --gpus."""
    clear = [GpuFindings(OK, "", (card("amd"),)), GpuFindings(OK, "", (card("nvidia"),)), GpuFindings(NONE, "no GPU")]
    unclear = [GpuFindings(UNKNOWN, "unreadable"), GpuFindings(MIXED, "two", (card("amd"), card("nvidia")))]

    assert [container_devices.vendor("auto", found) for found in clear] == ["amd", "nvidia", "none"]
    for found in unclear:
        with pytest.raises(PlanError, match="GPUs is unknown"):
            container_devices.vendor("auto", found)
        assert container_devices.vendor("amd", found) == "amd"


@pytest.mark.parametrize(("enforced", "words"), [(True, ["--security-opt=label=disable"]), (False, [])])
def test_selinux_does_not_block_the_mounts(tmp_path: Path, *, enforced: bool, words: list[str]) -> None:
    """With an SELinux policy on the host, labels are disabled for the container: shared storage cannot be relabelled."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    if enforced:
        (tmp_path / "root/sys/fs/selinux/class").mkdir(parents=True)
    settings = resolve(SettingsFiles(), {}, [Given("container.image", "i", "flag"), Given("container.gpus", "none", "flag")])
    request = LaunchRequest(("preflight",), (), settings, user.full_environment(), user.project, tmp_path / "root")
    plan = container.make_plan(CommandLine(), request)

    assert [word for word in plan.prefix if word.startswith("--security-opt")] == words
