"""A backend whose process uses all GPUs of a node is started without torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.launch_cli_rig import User

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = "llama-3.1-8b-maxtext-mi300x-bf16-8"


def test_the_plan_has_one_process_for_all_gpus_of_the_node(tmp_path: Path) -> None:
    """It learns where the first node is and how many nodes there are. The recipe is for the GPUs of both nodes."""
    user = User(tmp_path)
    shape = ("direct", "--nnodes", "2", "--node-rank", "1", "--master-addr", "n0", "--nproc", "8", "--python", "python3")
    done = user.cli("--dry-run", "--output", str(user.run_dir), *shape, "--", "train", "pretrain", "--config", RECIPE)

    assert done.returncode == 0, done.stderr
    assert "2 nodes, 1 process per node, this is node 1" in done.stdout
    assert "torch.distributed" not in done.stdout
    for variable in ("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=n0", "MASTER_PORT=29400", "NNODES=2", "NODE_RANK=1"):
        assert f"set      {variable}  " in done.stdout
    assert '"devices": 16' in done.stdout
    assert "per_device_batch_size=4" in done.stdout
