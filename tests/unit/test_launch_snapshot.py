"""primus_bootstrap.launch.snapshot: content of a snapshot, masking, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.snapshot import code_state, machine_state, run_snapshot
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from pathlib import Path


def test_values_that_are_not_secret_are_not_masked() -> None:
    """Numbers, paths and token marks must stay, so that the configuration can be used again."""
    text = "tokenizer: gpt2\neos_token_id: 50256\npad_token: <pad>\nkey_path: /etc/key\nmonkey: bananas-and-more\nnum_key_value_heads: 8\n"

    assert code_state.mask_settings(text, ()) == text


def test_gpus_drivers_and_ports_are_read_from_sysfs(tmp_path: Path) -> None:
    """Model, driver, and the firmware of each port."""
    root = expand("mi300x-roce", tmp_path / "root")
    (root / "sys/module/amdgpu").mkdir(parents=True, exist_ok=True)
    (root / "sys/module/amdgpu/version").write_text("6.12.12\n")
    found = machine_state.describe(sysfs.Host(root), "", {})

    assert (found["gpus"]["model"], found["gpus"]["count"]) == ("MI300X", 8)
    assert found["gpu_drivers"]["amdgpu"] == "6.12.12"
    assert found["rdma_ports"]
    assert found["python"] == {"problem": "the program's interpreter is unknown on this host"}


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "has no snapshot"), ("{", "is not JSON"), ('{"schema": "x/9"}', "does not have the schema")]
)
def test_a_folder_without_a_usable_snapshot_is_an_error(tmp_path: Path, content: str | None, reason: str) -> None:
    """The message names the file and the problem."""
    if content is not None:
        (tmp_path / "snapshot.json").write_text(content)
    with pytest.raises(UsageError, match=reason):
        run_snapshot.read(run_snapshot.find(tmp_path), run_snapshot.MAIN)
