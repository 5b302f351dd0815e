"""The units of slurmctld and slurmd: what systemd forbids them, and what they wait for."""

from __future__ import annotations

from typing import Any

from tests.unit.test_role_templates import render


def directives(name: str, **variables: Any) -> dict[str, str]:
    """Return the directives of a rendered drop-in, the last of each name."""
    text = render("slurm", name, slurm_controllers=[{"name": "ctl1", "address": "10.0.0.1"}], **variables)
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key: value for key, _, value in pairs}


def test_slurmctld_holds_on_to_no_mount_of_the_shared_folder() -> None:
    """With ReadWritePaths= systemd binds the folder for the unit, and a file system that is mounted anew stays unseen for ever."""
    shared = directives("slurmctld.conf.j2", slurm_shared_state_dir="/jfs/slurm")

    assert shared["ProtectSystem"] == "full"
    assert "/jfs" not in " ".join(shared.values())
    assert "ReadWritePaths" not in shared


def test_slurmctld_alone_writes_only_its_own_folders() -> None:
    """A folder on the host's own disk is not mounted anew: there everything else stays read-only."""
    own = directives("slurmctld.conf.j2")

    assert (own["ProtectSystem"], own["ReadWritePaths"]) == ("strict", "-/var/lib/slurm -/var/log/slurm")


def test_slurmd_waits_for_the_shared_file_system_and_does_not_need_it() -> None:
    """No job starts on a node before its files are there; one that cannot mount them answers all the same, and its health drains it."""
    node = directives("slurmd.conf.j2")

    assert "juicefs.service" in node["After"].split()
    assert not {"Requires", "BindsTo", "RequiresMountsFor"} & {*node}
    assert "juicefs.service" not in node["Wants"]
