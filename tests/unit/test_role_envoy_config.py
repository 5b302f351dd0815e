"""What the role `envoy` tells Envoy: pure functions, checked by their outcome and by the real Envoy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from tests.unit.envoy_rig import KEY, filters, stated, wishes

if TYPE_CHECKING:
    from pathlib import Path

values: Any = filters.envoy_values


def table(made: dict[str, Any], listener: str) -> dict[str, Any]:
    """Return the virtual hosts of a listener's routes by name."""
    document = json.loads(made["documents"][f"routes-{listener}"])
    return {host["name"]: host for host in document["resources"][0]["virtual_hosts"]}


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """A second apply has nothing to change, so nothing may depend on the order of a mapping; a changed route changes its table only."""
    first, second = wishes(tmp_path), wishes(tmp_path, stated(envoy_api_keys=dict(reversed(stated()["envoy_api_keys"].items()))))
    routes = [{**one, "timeout_s": 7} if one["name"] == "site" else one for one in stated()["envoy_routes"]]
    third = wishes(tmp_path, stated(envoy_routes=routes))

    assert first == second
    assert [name for name, text in third["documents"].items() if text != first["documents"][name]] == ["routes-https"]


def test_keys_stand_in_the_listeners_file_only(tmp_path: Path) -> None:
    """Routes and start values hold no key, so only one file is a secret."""
    made = wishes(tmp_path)

    assert [name for name, text in made["documents"].items() if KEY in text] == ["listeners"]
    assert KEY not in made["bootstrap"]


def test_an_exact_path_counts_first_then_the_longest_prefix(tmp_path: Path) -> None:
    """Routes of one host are ordered by precision, and those for any host follow in every table."""
    hosts = table(wishes(tmp_path), "https")

    assert {name: [route["name"] for route in host["routes"]] for name, host in hosts.items()} == {
        "api.example.com": ["health", "train", "chat", "site"],
        "*": ["train", "site"],
    }
    assert hosts["*"]["routes"][0]["match"] == {"path_separated_prefix": "/train"}


def test_a_listener_that_redirects_serves_no_route(tmp_path: Path) -> None:
    """Every request on port 80 is sent to the port of the first listener with TLS."""
    made = wishes(tmp_path)
    other = wishes(tmp_path, stated(envoy_listeners=[{**one, "port": one["port"] + 9000} for one in stated()["envoy_listeners"]]))

    assert table(made, "http")["*"]["routes"] == [{"match": {"prefix": "/"}, "redirect": {"https_redirect": True}}]
    assert table(other, "http")["*"]["routes"][0]["redirect"] == {"https_redirect": True, "port_redirect": 9443}


def test_a_limit_refuses_beyond_it_and_says_when_to_come_back(tmp_path: Path) -> None:
    """10 in 60 s: a bucket of ten, one back every six seconds; on the route, and on the socket where it can be tried."""
    made = wishes(tmp_path)
    limit = table(made, "https")["*"]["routes"][0]["typed_per_filter_config"]["envoy.filters.http.local_ratelimit"]
    trial = json.loads(made["documents"]["listeners"])["resources"][-1]
    hosts = trial["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]

    assert limit["token_bucket"] == {"max_tokens": 10, "tokens_per_fill": 10, "fill_interval": "60s"}
    assert limit["response_headers_to_add"][0]["header"] == {"key": "retry-after", "value": "6"}
    assert trial["address"] == {"pipe": {"path": "/run/envoy/trial.sock", "mode": 0o600}}
    assert [host["routes"][0]["typed_per_filter_config"]["envoy.filters.http.local_ratelimit"] for host in hosts] == [limit]


def test_without_a_limit_there_is_no_socket_to_try_one(tmp_path: Path) -> None:
    """What is not needed is not there."""
    routes = [{key: value for key, value in one.items() if key != "rate_limit"} for one in stated()["envoy_routes"]]
    listeners = json.loads(wishes(tmp_path, stated(envoy_routes=routes))["documents"]["listeners"])["resources"]

    assert [one["name"] for one in listeners] == ["http", "https", "inner"]


@pytest.mark.parametrize(("names", "clients"), [(["ada"], ["ada"]), (["*"], ["ada", "bob"])])
def test_a_route_lets_its_clients_in(tmp_path: Path, names: list[str], clients: list[str]) -> None:
    """Those that it names, or all; a public route asks for nothing."""
    routes = [{"name": "one", "upstream": "web", "api_keys": names}, {"name": "two", "path": "/x", "upstream": "web", "public": True}]
    two, one = table(wishes(tmp_path, stated(envoy_routes=routes)), "inner")["*"]["routes"]

    assert one["typed_per_filter_config"]["envoy.filters.http.api_key_auth"]["allowed_clients"] == clients
    assert "typed_per_filter_config" not in two


def test_names_are_looked_up_and_addresses_are_not(tmp_path: Path) -> None:
    """One name among the endpoints is enough; an ejected endpoint is never asked, and one without requests is looked at as often."""
    clusters = {one["name"]: one for one in json.loads(wishes(tmp_path)["documents"]["clusters"])["resources"]}

    assert {name: one["type"] for name, one in clusters.items()} == {"web": "STATIC", "model": "STRICT_DNS", "jwks:far": "STRICT_DNS"}
    assert {name: one.get("dns_lookup_family") for name, one in clusters.items()} == {
        "web": None, "model": "V4_PREFERRED", "jwks:far": "V4_PREFERRED",
    }  # fmt: skip
    assert clusters["web"]["common_lb_config"] == {"healthy_panic_threshold": {"value": 0}}
    assert clusters["web"]["health_checks"][0]["no_traffic_interval"] == "5s"
    assert clusters["model"]["health_checks"][0]["tcp_health_check"] == {}
    assert clusters["model"]["transport_socket"]["typed_config"]["sni"] == "model"


def test_the_admin_interface_is_a_socket_for_root_and_reads_only(tmp_path: Path) -> None:
    """No account of the host can connect to it, it has no TCP port, and nothing that changes Envoy is among its paths."""
    admin = json.loads(wishes(tmp_path)["bootstrap"])["admin"]
    paths = [one["prefix"] for one in admin["allow_paths"]]

    assert admin["address"] == {"pipe": {"path": "/run/envoy/admin.sock", "mode": 0o600}}
    assert not [path for path in ("/quitquitquit", "/logging", "/healthcheck/fail", "/drain_listeners", "/reset_counters") if path in paths]
    assert not [path for path in paths if path == "/"]


def test_entries_have_the_defaults_that_the_spec_states() -> None:
    """The defaults inside entries stand in the spec for people and in the code for Envoy: the same."""
    spec = yaml.safe_load((content.roles_dir() / "envoy" / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    told = {
        name: {key: one["default"] for key, one in option["options"].items() if "default" in one}
        for name, option in spec.items()
        if option.get("options")
    }
    told["envoy_routes"]["rate_limit"] = {}  # an absent mapping: a default would be filled with what is required inside it

    assert told == values.DEFAULTS


@pytest.mark.parametrize("endpoint", ["", "node1", "node1:", ":80", "node1:0", "node1:70000", "http://node1:80", "no de:80", "[node1]x:80"])
def test_what_is_no_endpoint_is_none(endpoint: str) -> None:
    """Anything but host:port is refused."""
    with pytest.raises(ValueError, match="is not host:port"):
        values.host_and_port(endpoint)
