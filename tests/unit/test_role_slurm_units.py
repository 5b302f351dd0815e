"""systemd drop-ins of slurmctld and slurmd: restrictions and dependencies."""

from __future__ import annotations

from typing import Any

import pytest

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


# With User= and without capabilities, each of these implies NoNewPrivileges=yes: systemd.exec(5).
IMPLY_NO_NEW_PRIVILEGES = {
    "SystemCallFilter", "SystemCallArchitectures", "RestrictAddressFamilies", "RestrictNamespaces", "PrivateDevices",
    "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectClock", "MemoryDenyWriteExecute", "RestrictRealtime",
    "RestrictSUIDSGID", "DynamicUser", "LockPersonality",
}  # fmt: skip


@pytest.mark.parametrize("name", ["MailProg", "resumeprogram", "PrologSlurmctld"])
def test_slurmctld_may_start_the_programs_of_the_site(name: str) -> None:
    """A mailer gets the group of its queue, a resume program uses sudo. Without such programs, the unit forbids both."""
    permitted = directives("slurmctld.conf.j2", slurm_extra_conf={name: "/usr/local/bin/program"})
    strict = directives("slurmctld.conf.j2", slurm_extra_conf={"MailDomain": "example.com", "MaxJobCount": 5})

    assert permitted["NoNewPrivileges"] == "no"
    assert not {*IMPLY_NO_NEW_PRIVILEGES, "CapabilityBoundingSet"} & {*permitted}
    assert (permitted["User"], permitted["ProtectSystem"]) == ("slurm", "full")
    assert (strict["NoNewPrivileges"], strict["CapabilityBoundingSet"], strict["ProtectSystem"]) == ("yes", "", "strict")


def test_slurmd_waits_for_the_shared_file_system_without_requiring_it() -> None:
    """It starts after the mount. If the mount fails it still answers, and the health check drains it."""
    node = directives("slurmd.conf.j2")

    assert "juicefs.service" in node["After"].split()
    assert not {"Requires", "BindsTo", "RequiresMountsFor"} & {*node}
    assert "juicefs.service" not in node["Wants"]
