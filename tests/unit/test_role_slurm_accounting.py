"""Slurm accounting: the sacctmgr calls that are needed, the hash of the database password, and verdicts of the verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from tests.unit.role_module import load_file, load_role_module
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence

accounts: Any = load_role_module("slurm_accounting", "slurm_accounts")
effects: Any = load_role_module("slurm_accounting", "slurm_accounting_effects")
database: Any = load_file(content.roles_dir() / "slurm_accounting" / "filter_plugins" / "slurm_accounting.py")
from ansible.module_utils import slurm_accounting_data as _ledger  # noqa: E402 - found once the role is loaded

data: Any = _ledger
DesiredState: Any = accounts.DesiredState

# As slurmdbd 22.05.8 answered on Debian 12.
FRESH = {
    "cluster": "",
    "tres": "cpu|\nmem|\nnode|\nbilling|\nfs|disk\n",
    "qos": "normal|Normal QOS default|0||00:00:00|||||||1.000000\n",
    "account": "root|default root account|root\n",
    "user": "root|root|Administrator\n",
    "association": "root|||1|normal|\nroot|root||1|normal|\n",
}
FULL = {
    "cluster": "lab\n",
    "tres": FRESH["tres"] + "gres|gpu\n",
    "qos": FRESH["qos"]
    + "low|low|0||00:00:00|||||||1.000000\n"
    + "high|the high one|100|low,normal|00:00:30|1-12:00:00|4||cpu=64|gres/gpu=8|DenyOnLimit|2.500000\n",
    "account": FRESH["account"] + "team|the team|lab\nnight|night|team\n",
    "user": FRESH["user"] + "ada|team|None\n",
    "association": "root|||1|normal|\nroot|root||1|high,low,normal|\n"
    "team||root|1|normal|\nteam|ada||1|low,normal|\nnight||team|3|high,normal|\nnight|ada||1|low,normal|\n",
}
HIGH = {
    "name": "high",
    "description": "The High one",
    "priority": 100,
    "preempt": ["normal", "low"],
    "max_wall": "36:00:00",
    "grace_time_s": 30,
    "max_jobs_per_user": 4,
    "max_tres": "cpu=64",
    "max_tres_per_user": "gres/gpu=8",
    "flags": ["denyonlimit"],
    "usage_factor": 2.5,
}
NIGHT = {"name": "night", "parent": "team", "fairshare": 3, "qos": ["high", "normal"]}
TEAM = {"name": "team", "description": "The team", "organization": "Lab"}
ADA = {"name": "ada", "accounts": ["night", "team"], "default_account": "team", "qos": ["normal", "low"]}
STATED = {"qos": [{"name": "low"}, HIGH], "accounts": [NIGHT, TEAM], "users": [ADA]}


def calls(answers: dict[str, str], **changes: Any) -> list[str]:
    """Return the required sacctmgr calls."""
    plan = accounts.make_plan(accounts.parse_data(answers), DesiredState("lab", **changes))
    return [" ".join(words) for words in plan.calls]


def test_matching_state_needs_no_call() -> None:
    """Spelling of times and parse_tres and the order of lists do not matter."""
    assert calls(FULL, **STATED) == []


def test_empty_database_is_filled_in_order() -> None:
    """QOS before references to them, parents before children, the default account first, the level last."""
    found = calls(FRESH, **STATED)

    assert found[:3] == ["add cluster lab", "add qos low", "add qos high"]
    assert found[3].startswith("modify qos where name=high set priority=100 preempt=low,normal gracetime=30 maxwall=1-12:00:00")
    assert "gres/gpu" not in found[3]
    assert found[4:] == [
        "add account team cluster=lab parent=root description=The team organization=Lab",
        "add account night cluster=lab parent=team",
        "modify account where name=night cluster=lab set fairshare=3 qos=high,normal",
        "add user ada cluster=lab account=team",
        "modify user where name=ada account=team cluster=lab set qos=low,normal",
        "add user ada cluster=lab account=night",
        "modify user where name=ada account=night cluster=lab set qos=low,normal",
        "modify user where name=root account=root cluster=lab set qos=high,low,normal",
    ]


def test_limit_waits_for_its_resource() -> None:
    """Before a controller registers GPUs, the limit is reported as pending."""
    plan = accounts.make_plan(accounts.parse_data(FRESH), DesiredState("lab", [HIGH]))

    assert plan.waiting == ("QOS high: no controller has named gres/gpu yet, which max_tres_per_user bounds",)


def test_removed_settings_are_reset() -> None:
    """Limits of a QOS, shares of an account and QOS of a user return to the default."""
    found = calls(FULL, qos=[{"name": "high"}], accounts=[TEAM, {"name": "night"}], users=[{"name": "ada", "accounts": ["night", "team"]}])

    assert found[0] == (
        "modify qos where name=high set priority=0 preempt= gracetime=0 maxwall=-1 maxjobsperuser=-1 "
        "maxtresperjob=cpu=-1 maxtresperuser=gres/gpu=-1 flags=-1 usagefactor=1"
    )
    assert "modify account where name=night cluster=lab set parent=root fairshare=1 qos=" in found
    assert "modify user where name=ada account=team cluster=lab set qos=" in found
    assert found[-1] == "modify user where name=ada set defaultaccount=night"


def test_unlisted_entries_stay_without_purge() -> None:
    """Manually created entries are removed only if purge is enabled."""
    assert calls(FULL) == []
    assert calls(FULL, qos=[HIGH, {"name": "low"}], accounts=[TEAM], purge=True) == [
        "delete user where name=ada",
        "delete account where name=night",
    ]
    assert calls(FULL, **{**STATED, "users": [{**ADA, "accounts": ["team"]}]}, purge=True) == ["delete user where name=ada account=night"]


def test_root_may_use_every_qos() -> None:
    """The preemption test needs it; the account gets no QOS. If hosts.yaml lists root, its entry stays."""
    row = FULL | {"association": FULL["association"].replace("root|root||1|high,low,normal|", "root|root||1|normal|")}

    assert calls(row, **STATED) == ["modify user where name=root account=root cluster=lab set qos=high,low,normal"]
    assert not [call for call in calls(row, qos=STATED["qos"], users=[{"name": "root", "accounts": ["root"]}]) if "set qos=high" in call]


def test_built_in_entries_are_never_purged() -> None:
    """The account and user root, and the QOS normal."""
    assert not [call for call in calls(FULL, purge=True) if call.endswith(("=root", "=normal"))]


def test_cyclic_accounts_are_refused() -> None:
    """No creation order exists."""
    with pytest.raises(ValueError, match="accounts a, b form a cycle"):
        calls(FRESH, accounts=[{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("1-00:00:01", 86401)]
)
def test_times_are_parsed_as_slurm_does(text: str, seconds: int) -> None:
    """A plain number means minutes."""
    assert data.parse_time(text) == seconds


def test_amounts_are_compared_as_numbers() -> None:
    """102400 MiB equals 100G; an invalid amount is refused."""
    assert data.parse_tres("cpu=4,mem=102400") == data.parse_tres("mem=100G,cpu=4")
    with pytest.raises(ValueError, match="gpu=many is not an amount"):
        data.parse_tres("gpu=many")


class FakeSacctmgr:
    """Answers `show` from a table; GPUs appear after some queries."""

    def __init__(self, *, silent: int = 0) -> None:
        """Store the number of TRES queries before a GPU appears."""
        self.silent = silent
        self.done: list[str] = []

    def __call__(self, words: Sequence[str]) -> str:
        """Answer one call."""
        if "show" not in words:
            self.done.append(" ".join(words))
            return ""
        what = words[words.index("show") + 1]
        if what == "tres":
            self.silent -= 1
            return FRESH["tres"] if self.silent >= 0 else FULL["tres"]
        return FRESH[what]


def test_check_mode_runs_no_command() -> None:
    """It returns the plan."""
    sacctmgr = FakeSacctmgr()
    plan = accounts.apply(sacctmgr, DesiredState("lab", [HIGH]), check=True, wait_s=0, wait=lambda _: None)

    assert plan.calls
    assert sacctmgr.done == []


def test_late_gpus_are_waited_for() -> None:
    """With a waiting time the limit is set; without, the next run sets it."""
    patient, hasty = FakeSacctmgr(silent=3), FakeSacctmgr(silent=3)
    late = accounts.apply(patient, DesiredState("lab", [HIGH]), check=False, wait_s=60, wait=lambda _: None)
    early = accounts.apply(hasty, DesiredState("lab", [HIGH]), check=False, wait_s=0, wait=lambda _: None)

    assert late.waiting == ()
    assert [call for call in patient.done if "maxtresperuser=gres/gpu=8" in call]
    assert len(early.waiting) == 1


def test_unresponsive_slurmdbd_is_an_error() -> None:
    """The error contains its message."""

    def silent(words: Sequence[str]) -> str:
        raise accounts.RefusedError(f"sacctmgr {words[2]}: connection refused")

    with pytest.raises(accounts.RefusedError, match="connection refused"):
        accounts.wait_for(silent, wait=lambda _: None, wait_s=0)


def test_password_hash_equals_that_of_the_server() -> None:
    """As in mysql.global_priv of MariaDB 10.11 for this password."""
    assert database.slurm_accounting_password_hash("abcdefghijklmnop") == "*35FC2CB2A269DFC9A5B893D0A80324251842AD60"


def verdicts(answers: dict[str, str], *, host: str = "10.0.0.1", desired: Any = None) -> dict[str, str]:
    """Return the verdict of each check for these answers of slurmdbd."""

    def sacctmgr(words: Sequence[str]) -> str:
        what = words[words.index("show") + 1]
        return f"lab|{host}\n" if words[-1].endswith("controlhost") else answers[what]

    found = effects.Verdicts("slurm_accounting", "db1")
    if effects.check_answer(found, sacctmgr, "lab", controllers=1):
        effects.check_entries(found, sacctmgr, desired or DesiredState("lab", **STATED))
    return {record["check"].removeprefix("slurm_accounting."): record["verdict"] for record in found.records}


def test_matching_accounting_passes() -> None:
    """The daemon answers and knows the cluster, a controller registered, all entries match."""
    assert set(verdicts(FULL).values()) == {"pass"}


def test_difference_and_unregistered_controller_fail() -> None:
    """A QOS was changed, and no controller registered."""
    found = verdicts({**FULL, "qos": FRESH["qos"]}, host="")

    assert (found["as_stated"], found["controller"], found["answers"]) == ("fail", "fail", "pass")


@pytest.mark.parametrize(
    ("timer", "result", "newest", "outcome"),
    [
        ("active", "success", "dump-1.sql.gz", ("pass", "pass")),
        ("inactive", "exit-code", "dump-1.sql.gz", ("fail", "fail")),
        ("", "", "", ("unknown", "skipped")),
    ],
)
def test_backup_timer_and_last_run_are_checked(timer: str, result: str, newest: str, outcome: tuple[str, str]) -> None:
    """Before the first run the result is skipped; no answer is unknown."""
    found = effects.Verdicts("slurm_accounting", "db1")
    effects.check_backups(found, timer=timer, result=result, newest=newest)

    assert tuple(record["verdict"] for record in found.records) == outcome


@pytest.mark.parametrize("system", ["Debian", "Rocky"])
@pytest.mark.parametrize("unit", ["mariadb.unit.conf.j2", "slurmdbd.unit.conf.j2"])
def test_unit_creates_the_folder_of_the_start_record(unit: str, system: str) -> None:
    """Some distributions' packages do not create it, and starts would fail."""
    lines = render("slurm_accounting", unit, system).splitlines()
    runtime_folder = next(line.partition("=")[2] for line in lines if line.startswith("RuntimeDirectory="))
    record_path = next(line.rpartition("> ")[2].rstrip("'") for line in lines if line.startswith("ExecStartPost="))

    assert record_path == f"/run/{runtime_folder}/applied"


@pytest.mark.parametrize("role", ["slurm", "slurm_accounting"])
def test_slurm_is_installed_from_epel_on_rhel(role: str) -> None:
    """RHEL itself has no Slurm packages."""
    tasks = yaml.safe_load((content.roles_dir() / role / "tasks/install.yml").read_text(encoding="utf-8"))

    assert [task["ansible.builtin.dnf"]["enablerepo"] for task in tasks if "ansible.builtin.dnf" in task] == ["epel"]


def test_queue_limit_per_user_has_a_default() -> None:
    """It applies to each QOS without a limit, also to the built-in one, which otherwise stays unchanged."""
    found = calls(FULL, **STATED, max_submit=500)
    bounded = FULL | {"qos": FULL["qos"].replace("normal|Normal QOS default|0||00:00:00||||", "normal|Normal QOS default|7||00:00:00|||9|")}

    assert found == [
        "modify qos where name=low set maxsubmitjobsperuser=500",
        "modify qos where name=high set maxsubmitjobsperuser=500",
        "modify qos where name=normal set maxsubmitjobsperuser=500",
    ]
    assert calls(bounded, max_submit=9) == []
    assert calls(bounded, max_submit=500) == ["modify qos where name=normal set maxsubmitjobsperuser=500"]
    assert calls(bounded, qos=[{"name": "normal", "priority": 7, "max_submit_per_user": 9}], max_submit=500) == []
    assert calls(FULL, max_submit=0) == []
