"""primus_bootstrap.launch.detect: permissions of the GPU device files, and opening them as another account."""

from __future__ import annotations

import grp
import os
import pwd
import time
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.detect import device_access, verify_env

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Verdict

ME = pwd.getpwuid(os.getuid()).pw_name
GROUP = grp.getgrgid(os.getgid()).gr_name


def make_nodes(root: Path, *names: str, mode: int = 0o660) -> None:
    """Create files below dev/ of a fake root."""
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(mode)


def nvidia_host(root: Path, *, loaded_gid: int, loaded_mode: int, uptime_s: float = 100.0) -> Path:
    """Write the options of the NVIDIA module for this group and mode 0660, the options of the loaded module, and devices."""
    make_nodes(root, "nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia-caps")
    options = f"NVreg_DeviceFileUID=0 NVreg_DeviceFileGID={os.getgid()} NVreg_DeviceFileMode=0660"
    files = {
        "etc/modprobe.d/primus-nvidia.conf": f"# a comment\noptions nvidia {options}\n",
        "proc/driver/nvidia/params": f"DeviceFileUID: 0\nDeviceFileGID: {loaded_gid}\nDeviceFileMode: {loaded_mode}\n",
        "proc/uptime": f"{uptime_s} 1.0\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def only(found: Sequence[Verdict]) -> Verdict:
    """Return the single record."""
    (record,) = found
    return record


def test_every_device_file_of_a_vendor_is_listed() -> None:
    """Other files in /dev and display nodes are not."""
    amd = device_access.device_names("amd", (), ("card0", "renderD129", "renderD128"))
    nvidia = device_access.device_names("nvidia", ("nvidia1", "nvidia0", "nvidia-caps", "nvidiactl", "null"), ())

    assert amd == ("kfd", "dri/renderD128", "dri/renderD129")
    assert nvidia == ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")


def test_devices_of_nvidia_are_compared_with_the_module_options(tmp_path: Path) -> None:
    """The module was loaded with them: group and mode of every device file must follow."""
    root = nvidia_host(tmp_path, loaded_gid=os.getgid(), loaded_mode=0o660)
    right = only(verify_env._devices(root))
    (root / "dev/nvidia1").chmod(0o600)
    wrong = only(verify_env._devices(root))

    assert (right.verdict, right.found) == ("pass", "4 devices")
    assert (wrong.verdict, wrong.reason) == ("fail", f"{root}/dev/nvidia1 is {GROUP} 0600")


def test_module_options_take_effect_at_the_next_boot(tmp_path: Path) -> None:
    """Options that were written after the boot are skipped. Older ones must be in effect: else the initramfs has an older copy."""
    root = nvidia_host(tmp_path, loaded_gid=0, loaded_mode=0o666)
    before = only(verify_env._devices(root))
    written = time.time() - 3600
    os.utime(root / "etc/modprobe.d/primus-nvidia.conf", (written, written))
    after = only(verify_env._devices(root))

    assert (before.verdict, after.verdict) == ("skipped", "fail")
    assert (after.expected, after.found) == (f"{GROUP} 0660", f"{device_access.group_name(0)} 0666")
    assert "initramfs" in after.fix


def test_host_without_permissions_of_gpu_env_has_no_record(tmp_path: Path) -> None:
    """With an empty gpu_env_device_group there is neither rule nor option."""
    assert verify_env._devices(tmp_path) == ()


@pytest.mark.parametrize(("vendor", "user", "verdict"), [("", "ada", None), ("amd", "", "skipped"), ("amd", "ada", "skipped")])
def test_without_gpu_user_or_device_nothing_is_opened(vendor: str, user: str, verdict: str | None, tmp_path: Path) -> None:
    """A host without a GPU has no record; the others are skipped with a reason."""
    found = verify_env._user_access(tmp_path, vendor, user)

    assert [record.verdict for record in found] == ([verdict] if verdict else [])
    assert all(record.reason for record in found)


def test_refused_device_is_named_with_mode_and_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an administrator sees at once which group is missing."""
    make_nodes(tmp_path, "kfd", "dri/renderD128", mode=0o600)
    monkeypatch.setattr(verify_env, "refused_devices", lambda _user, nodes: {nodes[0]: "Permission denied"})
    monkeypatch.setattr(verify_env, "groups_of", lambda _user: ("training", "vision"))
    found = only(verify_env._user_access(tmp_path, "amd", "ada"))

    assert (found.check, found.verdict, found.expected, found.found) == ("gpu_user_access", "fail", "ada opens 2 devices", "1 devices")
    assert found.reason == f"ada (groups training, vision) cannot open {tmp_path}/dev/kfd ({GROUP} 0600): Permission denied"
    assert "gpu_env_device_group" in found.fix


@pytest.mark.parametrize(("error", "words"), [(KeyError("ada"), "no account ada"), (TimeoutError("no answer within 60 s"), "no answer")])
def test_account_without_an_answer_is_unknown(error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing account, or a GPU that hangs when it is opened."""
    make_nodes(tmp_path, "kfd")

    def refuse(_user: str, _nodes: object) -> dict[Path, str]:
        raise error

    monkeypatch.setattr(verify_env, "refused_devices", refuse)
    found = only(verify_env._user_access(tmp_path, "amd", "ada"))

    assert (found.verdict, words in found.reason, bool(found.fix)) == ("unknown", True, True)


def test_groups_of_an_account_include_its_own() -> None:
    """Names, as `id -Gn` prints them."""
    assert GROUP in device_access.groups_of(ME)
