"""primus_bootstrap.launch.detect.gpus on single PCI devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.detect import gpus, sysfs

if TYPE_CHECKING:
    from pathlib import Path


def device(root: Path, address: str, key: str, pci_class: str = "120000", physfn: str = "") -> None:
    """Write the sysfs files of one PCI device."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    vendor, number = key.split(":")
    for name, text in (("vendor", f"0x{vendor}\n"), ("device", f"0x{number}\n"), ("class", f"0x{pci_class}\n")):
        (folder / name).write_text(text)
    if physfn:
        (folder / "physfn").symlink_to(f"../{physfn}")


@pytest.mark.parametrize(("key", "expected"), [(key, "/".join(entry["models"])) for key, entry in gpus.catalogue()["ids"].items()])
def test_every_known_id_gives_its_model(key: str, expected: str, tmp_path: Path) -> None:
    """Whatever its class code is."""
    device(tmp_path, "0000:05:00.0", key, "030200")
    found = gpus.find_gpus(sysfs.Host(tmp_path))

    assert (found.verdict, found.name, found.reason) == ("ok", expected, "")


def test_a_shared_id_gives_all_its_models(tmp_path: Path) -> None:
    """1002:740c is MI250 or MI250X."""
    device(tmp_path, "0000:05:00.0", "1002:740c")
    found = gpus.find_gpus(sysfs.Host(tmp_path))

    assert found.models == ("MI250", "MI250X")


def test_a_virtual_function_does_not_count_beside_its_physical_function(tmp_path: Path) -> None:
    """A host with virtual functions for guests has as many GPUs as cards."""
    device(tmp_path, "0000:05:00.0", "1002:74a1")
    device(tmp_path, "0000:05:02.0", "1002:74b5", physfn="0000:05:00.0")
    found = gpus.find_gpus(sysfs.Host(tmp_path))

    assert (found.verdict, [gpu.address for gpu in found.gpus]) == ("ok", ["0000:05:00.0"])
    assert found.ignored[0].reason == "a virtual function of 0000:05:00.0, which is on this host"


def test_one_model_in_two_sizes_is_mixed(tmp_path: Path) -> None:
    """A100 with 40 and with 80 GiB."""
    device(tmp_path, "0000:05:00.0", "10de:20b0", "030200")
    device(tmp_path, "0000:06:00.0", "10de:20b2", "030200")

    assert gpus.find_gpus(sysfs.Host(tmp_path)).verdict == "mixed"


def test_an_unknown_3d_controller_of_nvidia_is_unknown(tmp_path: Path) -> None:
    """It is an accelerator, because it has no display."""
    device(tmp_path, "0000:05:00.0", "10de:3fff", "030200")

    assert gpus.find_gpus(sysfs.Host(tmp_path)).verdict == "unknown"


def test_a_known_id_counts_without_a_readable_class(tmp_path: Path) -> None:
    """The id is sufficient."""
    device(tmp_path, "0000:05:00.0", "1002:75a3")
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/class").unlink()

    assert gpus.find_gpus(sysfs.Host(tmp_path)).name == "MI355X"
