"""primus_bootstrap.launch.snapshot.run_snapshot: what is kept of a run, and what must never be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.snapshot import code_state, machine_state, run_snapshot
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_secret_is_kept_as_it_is() -> None:
    """Masking must leave a configuration that can be used again: numbers, paths and marks of tokenizers are no secrets."""
    text = "tokenizer: gpt2\neos_token_id: 50256\npad_token: <pad>\nkey_path: /etc/key\nmonkey: bananas-and-more\nnum_key_value_heads: 8\n"

    assert code_state.mask_settings(text, ()) == text


def test_gpus_drivers_and_ports_are_read_from_the_machine(tmp_path: Path) -> None:
    """What decides about numbers and speed: model, driver, firmware of each port."""
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
def test_a_folder_without_a_usable_snapshot_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    """The message says what is wrong with which file."""
    if content is not None:
        (tmp_path / "snapshot.json").write_text(content)
    with pytest.raises(UsageError, match=reason):
        run_snapshot.read(run_snapshot.find(tmp_path), run_snapshot.MAIN)
