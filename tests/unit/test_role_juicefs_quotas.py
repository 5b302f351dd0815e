"""Module `account_quotas`: quotas of accounts, including accounts that already exceed theirs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import load_role_module

quotas: Any = load_role_module("juicefs", "account_quotas")
Limit = quotas.Limit

GIB = 1 << 30
# As JuiceFS 1.4.2 prints it.
TABLE = """\
+----------+---------+---------+------+-----------+-------+-------+
|  Path/ID |   Size  |   Used  | Use% |   Inodes  | IUsed | IUse% |
+----------+---------+---------+------+-----------+-------+-------+
| /qdir    | 1.5 TiB |     0 B |   0% | unchanged |     0 |       |
| uid:4101 | 1.5 TiB | 144 KiB |   0% |     1,200 | 1,036 |   90% |
+----------+---------+---------+------+-----------+-------+-------+
"""


class Volume:
    """A volume in memory with limits and usage by account; records requests."""

    def __init__(self, there: dict[str, Any] | None = None, usage: dict[str, Any] | None = None) -> None:
        """Store the limits and usage."""
        self.there, self.usage = dict(there or {}), usage or {}
        self.recorded: dict[str, Any] = {}
        self.calls: list[tuple[str, Any]] = []

    def read(self) -> dict[str, Any]:
        """Return limit and usage of accounts with a limit, as the program does."""
        return {key: (limit, self.usage.get(key, Limit())) for key, limit in self.there.items()}

    def key_of(self, name: str) -> str:
        """Return the key of an account."""
        return name

    def set(self, key: str, limit: Any, _there: Any) -> None:
        """Set a limit."""
        self.calls.append((key, limit))
        self.there[key] = limit

    def record(self, limits: dict[str, Any]) -> None:
        """Store the exact limits."""
        self.recorded = limits


def test_limits_and_usage_are_parsed_from_the_table() -> None:
    """Handles units and digit separators. No limit is 0; other lines are skipped."""
    assert quotas.parse_table(TABLE) == {
        "/qdir": (Limit(1536 * GIB, 0), Limit(0, 0)),
        "uid:4101": (Limit(1536 * GIB, 1200), Limit(144 << 10, 1036)),
    }
    assert quotas.parse_table("") == {}


@pytest.mark.parametrize(
    ("space", "text"),
    [(7, "7 B"), (144 << 10, "144 KiB"), (GIB, "1.0 GiB"), (1500 * GIB, "1.5 TiB"), (10240 * GIB, "10 TiB"), (1 << 60, "1.0 EiB")],
)
def test_sizes_are_formatted_as_by_the_program(space: int, text: str) -> None:
    """As JuiceFS 1.4.2 printed them."""
    assert quotas.format_size(space) == text


def test_exact_limit_counts_if_it_rounds_to_the_displayed_one() -> None:
    """The program rounds 1500 GiB to 1.5 TiB. A manually set limit is used as displayed."""
    rounded = Limit(1536 * GIB, 40)

    assert quotas.exact_limit(rounded, Limit(1500 * GIB, 40)) == Limit(1500 * GIB, 40)
    assert quotas.exact_limit(rounded, Limit(1500 * GIB, 41)) == rounded
    assert quotas.exact_limit(rounded, Limit(20 * GIB, 40)) == rounded
    assert quotas.exact_limit(rounded, Limit(0, 40)) == rounded
    assert quotas.exact_limit(rounded, None) == rounded


def test_exceptions_replace_one_number_or_both() -> None:
    """An absent account gets no limit."""
    accounts = [{"name": "ada"}, {"name": "bob", "state": "present"}, {"name": "eve", "state": "absent"}]
    parameters = {"accounts": accounts, "gib": 10, "inodes": 100, "exceptions": {"bob": {"gib": "20"}, "eve": {"gib": 1}}}

    assert quotas.configured_limits(parameters) == {"ada": Limit(10 * GIB, 100), "bob": Limit(20 * GIB, 100)}


def test_second_run_changes_nothing() -> None:
    """Correct limits are not set again."""
    volume = Volume(usage={"ada": Limit(GIB, 3)})
    limits = {"ada": Limit(2 * GIB, 10)}
    first = quotas.apply(volume, limits, check=False)
    calls = len(volume.calls)
    second = quotas.apply(volume, limits, check=False)

    assert (first.changed, second.changed, second.over) == (["ada"], [], {})
    assert len(volume.calls) == calls
    assert volume.there == volume.recorded == {"ada": Limit(2 * GIB, 10)}


def test_account_above_its_quota_gets_no_limit() -> None:
    """A limit would stop its running jobs. Its usage is measured until it falls below the quota."""
    volume = Volume(usage={"ada": Limit(GIB, 30)})
    limits = {"ada": Limit(2 * GIB, 10)}
    first = quotas.apply(volume, limits, check=False)
    second = quotas.apply(volume, limits, check=False)
    measured, recorded = dict(volume.there), volume.recorded
    volume.usage["ada"] = Limit(GIB, 3)
    third = quotas.apply(volume, limits, check=False)

    assert (first.changed, second.changed, third.changed) == (["ada"], [], ["ada"])
    assert "30 files, more than 2 GiB, 10 files" in second.over["ada"]
    assert measured == recorded == {"ada": quotas.MEASURING}
    assert volume.there == {"ada": Limit(2 * GIB, 10)}


def test_check_mode_changes_nothing() -> None:
    """It only reports the accounts to change."""
    volume = Volume({"ada": Limit(GIB, 0)})
    outcome = quotas.apply(volume, {"ada": Limit(2 * GIB, 10), "eddy": Limit()}, check=True)

    assert outcome.changed == ["ada"]
    assert volume.calls == []


def test_zero_removes_the_limit() -> None:
    """With 0 and 0, accounts without a limit stay unchanged."""
    volume = Volume({"ada": Limit(GIB, 5)})
    outcome = quotas.apply(volume, {"ada": Limit(), "eddy": Limit()}, check=False)

    assert outcome.changed == ["ada"]
    assert volume.calls == [("ada", Limit())]


@pytest.mark.parametrize(
    ("there", "limit", "commands"),
    [
        (None, Limit(GIB, 5), [["quota set", "--uid=0", "--capacity=1", "--inodes=5"]]),
        (Limit(GIB, 5), Limit(2 * GIB, 0), [["quota delete", "--uid=0"], ["quota set", "--uid=0", "--capacity=2"]]),
        (Limit(GIB, 5), Limit(), [["quota delete", "--uid=0"]]),
        (None, Limit(), []),
    ],
)
def test_program_is_called_for_differences_only(monkeypatch: pytest.MonkeyPatch, there: Any, limit: Any, commands: list[list[str]]) -> None:
    """0 keeps the old value, so a limit is removed before a new one is set."""
    volume, calls = quotas.Volume({"kind": "user"}), []
    monkeypatch.setattr(volume, "run", lambda *words: calls.append(list(words)))
    volume.set("uid:0", limit, there)

    assert calls == commands


def test_verdicts_name_accounts_above_or_near_their_quota() -> None:
    """Above: skipped with a fix. Wrong limit: fail. All others: one pass that names those above 90 percent."""
    limits = {name: Limit(10 * GIB, 100) for name in ("ada", "bob", "carol", "dan")}
    kept = {"ada": Limit(GIB, 95), "bob": Limit(GIB, 300), "carol": Limit(), "dan": Limit()}
    outcome = quotas.Outcome(["carol"], {"bob": "uses more"}, kept)
    found = quotas.verdicts("n1", limits, outcome)

    assert [(one["verdict"], one.get("device", "")) for one in found] == [("skipped", "bob"), ("fail", "carol"), ("pass", "")]
    assert "juicefs_quotas: {bob:" in found[0]["fix"]
    assert found[2]["found"] == "2 accounts as configured; nearly full: ada 95 %"
