"""workloads.common.torch_release: the supported range, and products of groups of rows."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from tests.waiting import LIMIT_S
from tests.workloads.ranks import ROOT
from workloads.common.errors import SettingsError
from workloads.common.torch_release import NEWEST, OLDEST, can_group_products, grouped_product, release, require_supported

if TYPE_CHECKING:
    from pathlib import Path


def test_the_installed_release_is_supported() -> None:
    """The tests run with it."""
    require_supported()

    assert OLDEST <= release() <= NEWEST


@pytest.mark.parametrize("version", ["2.7.0", "2.9.1+rocm6.4", "2.13.0a0+git1234", "2.13.0+cpu"])
def test_versions_of_vendor_images_are_supported(version: str) -> None:
    """With their suffixes."""
    require_supported(version)


@pytest.mark.parametrize("version", ["2.6.0", "1.13.1", "2.14.0.dev20260801", "3.0.0", "unknown"])
def test_another_release_is_rejected_with_the_version_needed(version: str) -> None:
    """Older, newer, and without a number."""
    with pytest.raises(SettingsError) as raised:
        require_supported(version)

    assert raised.value.what == f"torch {version} is not supported; the programs need 2.7 to 2.13"
    assert 'pip install "torch>=2.7,<2.14"' in raised.value.fix


@pytest.mark.parametrize("program", ["train/pretrain.py", "train/posttrain.py"])
def test_a_program_ends_before_it_imports_what_the_release_lacks(tmp_path: Path, program: str) -> None:
    """With exit code 2 and the version needed. The torch here has a version and nothing else."""
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.5.1'\n")
    (tmp_path / "torch" / "distributed" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, str(ROOT / "workloads" / program)],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )

    assert done.returncode == 2, done.stderr
    assert "torch 2.5.1 is not supported; the programs need 2.7 to 2.13" in done.stderr


def operands(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ten rows and three matrices."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(10, 64, generator=generator, requires_grad=True), torch.randn(3, 64, width, generator=generator, requires_grad=True)


@pytest.mark.skipif(release() < (2, 9), reason="torch has no grouped products on a CPU before 2.9")
def test_a_grouped_product_has_the_values_and_gradients_of_one_product_per_group() -> None:
    """A group may be empty."""
    x, weight = operands(32)
    y = grouped_product(x, weight, torch.tensor([4, 4, 10], dtype=torch.int32))
    expected = torch.cat((x[:4] @ weight[0], x[4:] @ weight[2]))
    factor = torch.arange(y.numel()).view_as(y) / y.numel()
    found = torch.autograd.grad((y * factor).sum(), (x, weight))
    wanted = torch.autograd.grad((expected * factor).sum(), (x, weight))

    assert torch.allclose(y, expected, atol=1e-5)
    assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(found, wanted, strict=True))


def test_sizes_that_grouped_products_do_not_take_are_recognized() -> None:
    """Rows of 24 bytes: torch would raise an error."""
    assert not can_group_products(*operands(6))
    assert can_group_products(*operands(32)) == (release() >= (2, 9))
