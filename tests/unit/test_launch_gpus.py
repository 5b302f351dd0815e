"""primus_bootstrap.launch.detect.gpus: single rules that no whole machine shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.detect import gpus, sysfs

if TYPE_CHECKING:
    from pathlib import Path


def device(root: Path, address: str, key: str, pci_class: str = "120000", physfn: str = "") -> None:
    """Write one PCI device as plain files."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    vendor, number = key.split(":")
    for name, text in (("vendor", f"0x{vendor}\n"), ("device", f"0x{number}\n"), ("class", f"0x{pci_class}\n")):
        (folder / name).write_text(text)
    if physfn:
        (folder / "physfn").symlink_to(f"../{physfn}")


@pytest.mark.parametrize(("key", "expected"), [(key, "/".join(entry["models"])) for key, entry in gpus.catalogue()["ids"].items()])
def test_every_known_id_gives_its_model(key: str, expected: str, tmp_path: Path) -> None:
    """Each id of the data file is found, whatever its class code says."""
    device(tmp_path, "0000:05:00.0", key, "030200")
    found = gpus.find_gpus(sysfs.Host(tmp_path))

    assert (found.verdict, found.name, found.reason) == ("ok", expected, "")


def test_an_id_that_products_share_names_all_of_them(tmp_path: Path) -> None:
    """1002:740c is MI250 or MI250X: both are said, and either expectation is met."""
    device(tmp_path, "0000:05:00.0", "1002:740c")
    found = gpus.find_gpus(sysfs.Host(tmp_path))

    assert found.models == ("MI250", "MI250X")


def test_a_virtual_function_beside_its_physical_one_is_not_counted_again(tmp_path: Path) -> None:
    """A host that cuts its GPUs up for guests has as many GPUs as cards."""
    device(tmp_path, "0000:05:00.0", "1002:74a1")
    device(tmp_path, "0000:05:02.0", "1002:74b5", physfn="0000:05:00.0")
    found = gpus.find_gpus(sysfs.Host(tmp_path))

    assert (found.verdict, [gpu.address for gpu in found.gpus]) == ("ok", ["0000:05:00.0"])
    assert found.ignored[0].reason == "a virtual function of 0000:05:00.0, which is on this host"


def test_one_model_in_two_sizes_is_mixed(tmp_path: Path) -> None:
    """A100 of 40 and of 80 GiB are not one kind of GPU to a job."""
    device(tmp_path, "0000:05:00.0", "10de:20b0", "030200")
    device(tmp_path, "0000:06:00.0", "10de:20b2", "030200")

    assert gpus.find_gpus(sysfs.Host(tmp_path)).verdict == "mixed"


def test_an_unknown_3d_controller_of_nvidia_is_unknown(tmp_path: Path) -> None:
    """A class without a screen is an accelerator, known or not."""
    device(tmp_path, "0000:05:00.0", "10de:3182", "030200")

    assert gpus.find_gpus(sysfs.Host(tmp_path)).verdict == "unknown"


def test_a_known_gpu_without_class_still_counts(tmp_path: Path) -> None:
    """The id is enough; a class that cannot be read takes nothing away."""
    device(tmp_path, "0000:05:00.0", "1002:75a3")
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/class").unlink()

    assert gpus.find_gpus(sysfs.Host(tmp_path)).name == "MI355X"
