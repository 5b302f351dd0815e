"""Module `envoy_configuration`: order of file changes, waiting, and error messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.unit.envoy_rig import KEY
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    import pytest


module: Any = load_role_module("envoy", "envoy_configuration")


class FakeEnvoy:
    """A running Envoy that accepts or rejects files; records the order of the files."""

    def __init__(self, *, refuses: str = "") -> None:
        """Store the files to reject."""
        self.refuses = refuses
        self.files: dict[str, str] = {}
        self.writes: list[str] = []

    def read(self, name: str) -> str:
        """Return a file's text."""
        return self.files.get(name, "")

    def write(self, name: str, text: str) -> None:
        """Accept a file."""
        self.files[name] = text
        clusters = [one["name"] for one in json.loads(text)["resources"]] if name == "clusters" else []
        self.writes.append(f"{name} {' '.join(clusters)}".strip())

    def look(self) -> dict[str, Any]:
        """Answer as /config_dump does."""
        version = {name: json.loads(text)["version_info"] for name, text in self.files.items() if name != self.refuses}
        routes = [{"version_info": version[name], "route_config": {"name": name[7:]}} for name in version if name.startswith("routes-")]
        error = (
            [{"name": "https", "error_state": {"details": "cannot bind 443: Address already in use"}}]
            if self.refuses == "listeners"
            else []
        )
        return {
            "configs": [
                {"@type": "x.ClustersConfigDump", "version_info": version.get("clusters", "")},
                {"@type": "x.ListenersConfigDump", "version_info": version.get("listeners", ""), "dynamic_listeners": error},
                {"@type": "x.RoutesConfigDump", "dynamic_route_configs": routes},
            ]
        }


def document(version: str, *names: str) -> str:
    """Return a configuration file of Envoy."""
    return json.dumps({"version_info": version, "resources": [{"name": name} for name in names]})


NEW = {"listeners": document("l2"), "clusters": document("c2", "new"), "routes-https": document("r2")}


def test_references_always_resolve_during_a_change() -> None:
    """Order: old and new clusters together, routes, listeners. The old clusters are removed last."""
    envoy = FakeEnvoy()
    envoy.files = {"listeners": document("l1"), "clusters": document("c1", "old"), "routes-https": document("r1")}
    problems = module.write_documents(envoy, NEW, envoy.look, lambda _: None)

    assert (problems, envoy.writes) == ([], ["clusters new old", "routes-https", "listeners", "clusters new"])
    assert envoy.files == NEW


def test_without_a_running_envoy_files_are_written_without_waiting() -> None:
    """The next start reads them."""
    envoy = FakeEnvoy()

    assert module.write_documents(envoy, NEW, lambda: None, lambda _: None) == []
    assert envoy.writes == ["clusters new", "routes-https", "listeners"]


def test_active_file_stays_and_inactive_file_is_written_again() -> None:
    """Envoy retries a port that was occupied before."""
    envoy = FakeEnvoy()
    envoy.files = dict(NEW)
    quiet = module.write_documents(envoy, NEW, envoy.look, lambda _: None), list(envoy.writes)
    envoy.refuses = "listeners"
    seen: list[dict[str, Any]] = [envoy.look()]
    envoy.refuses = ""

    assert quiet == ([], [])
    assert module.write_documents(envoy, NEW, lambda: seen.pop() if seen else envoy.look(), lambda _: None) == []
    assert envoy.writes == ["listeners"]


def test_rejection_is_reported_with_envoys_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the rejected resource; the old endpoints stay."""
    envoy = FakeEnvoy(refuses="listeners")
    envoy.files = {"listeners": document("l1"), "clusters": document("c1", "old"), "routes-https": document("r1")}
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    problems = module.write_documents(envoy, NEW, envoy.look, lambda _: None)

    assert problems == ["cannot bind 443: Address already in use"]
    assert "old" in envoy.files["clusters"]


def test_warming_resource_is_not_in_force() -> None:
    """Applies to an upstream before its first checks and a listener without routes or port."""
    clusters = {"@type": "x.ClustersConfigDump", "version_info": "c", "dynamic_warming_clusters": [{}]}
    listeners = {"@type": "x.ListenersConfigDump", "version_info": "l", "dynamic_listeners": [{"name": "a", "warming_state": {}}]}
    both = {"name": "a", "warming_state": {}, "active_state": {}}
    unbound = {**listeners, "dynamic_listeners": [{"name": "a", "error_state": {"details": "x"}}]}

    assert module.active_versions({"configs": [clusters, listeners]}) == {"clusters": "c (incomplete)", "listeners": "l (incomplete)"}
    assert module.active_versions({"configs": [unbound]}) == {"listeners": "l (incomplete)"}
    assert module.active_versions(
        {"configs": [{**clusters, "dynamic_warming_clusters": []}, {**listeners, "dynamic_listeners": [both]}]}
    ) == {
        "clusters": "c",
        "listeners": "l",
    }


def test_secrets_are_masked_in_messages() -> None:
    """The longer secret is masked first, so that no part remains."""
    assert module.masked(f"bad key {KEY}-longer and {KEY}", [KEY, f"{KEY}-longer", ""]) == "bad key ******** and ********"


def test_reason_is_the_critical_log_line() -> None:
    """The prefix of the line is removed."""
    now = "[2026-01-01 00:00:00.000][1]"
    log = f"{now}[warning][misc] [a.cc:1] words\n{now}[critical][main] [s.cc:76] error: unknown cluster 'x'\n"

    assert module.error_in(log) == "error: unknown cluster 'x'"
    assert module.error_in("") == "no output"
