"""`primus-cli analyze topology` with a real inventory, and on this machine through the runtime direct."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.launch_cli_rig import ROOT, User

if TYPE_CHECKING:
    from pathlib import Path


def test_an_inventory_is_read_with_its_group_variables(tmp_path: Path) -> None:
    """The racks are variables of groups; ansible-inventory merges them. A broken inventory is an error with its message."""
    user = User(tmp_path)
    done = user.cli(
        "direct", "--", "analyze", "topology", "--fabric", str(ROOT / "inventory/h200-slurm/hosts.yaml"), "--visualize", "p.svg"
    )
    (user.project / "hosts.yaml").write_text("all: [1\n")
    broken = user.cli("analyze", "topology", "--fabric", "hosts.yaml")

    assert done.returncode == 0, done.stderr
    assert "├─ rack rack1  8 hosts\n│  ├─ host gpu01  8 x H200\n" in done.stdout
    assert (user.project / "p.svg").is_file()
    assert (broken.returncode, "fix: ansible-inventory -i hosts.yaml --list" in broken.stderr) == (2, True), broken.stderr
