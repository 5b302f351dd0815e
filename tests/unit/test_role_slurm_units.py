"""systemd drop-ins of slurmctld and slurmd: restrictions and dependencies."""

from __future__ import annotations

from typing import Any

from tests.unit.test_role_templates import render


def directives(name: str, **variables: Any) -> dict[str, str]:
    """Return the directives of a rendered drop-in; the last value of each name counts."""
    text = render("slurm", name, slurm_controllers=[{"name": "ctl1", "address": "10.0.0.1"}], **variables)
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key: value for key, _, value in pairs}


def test_slurmctld_does_not_bind_the_shared_folder() -> None:
    """ReadWritePaths= would bind the current mount and hide a later remount."""
    shared = directives("slurmctld.conf.j2", slurm_shared_state_dir="/jfs/slurm")

    assert shared["ProtectSystem"] == "full"
    assert "/jfs" not in " ".join(shared.values())
    assert "ReadWritePaths" not in shared


def test_single_slurmctld_writes_only_to_its_folders() -> None:
    """A local folder is not remounted, so the rest is read-only."""
    own = directives("slurmctld.conf.j2")

    assert (own["ProtectSystem"], own["ReadWritePaths"]) == ("strict", "-/var/lib/slurm -/var/log/slurm")


def test_slurmd_waits_for_the_shared_file_system_without_requiring_it() -> None:
    """It starts after the mount. If the mount fails it still answers, and the health check drains it."""
    node = directives("slurmd.conf.j2")

    assert "juicefs.service" in node["After"].split()
    assert not {"Requires", "BindsTo", "RequiresMountsFor"} & {*node}
    assert "juicefs.service" not in node["Wants"]
