"""Role `envoy`: the generated configuration of Envoy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from tests.unit.envoy_rig import KEY, configuration, filters, stated

if TYPE_CHECKING:
    from pathlib import Path

values: Any = filters.envoy_values


def table(config: dict[str, Any], listener: str) -> dict[str, Any]:
    """Return the virtual hosts of a listener's routes by name."""
    document = json.loads(config["documents"][f"routes-{listener}"])
    return {host["name"]: host for host in document["resources"][0]["virtual_hosts"]}


def test_same_input_generates_the_same_bytes(tmp_path: Path) -> None:
    """The order of mappings has no effect. A changed route changes only its own table."""
    first, second = (
        configuration(tmp_path),
        configuration(tmp_path, stated(envoy_api_keys=dict(reversed(stated()["envoy_api_keys"].items())))),
    )
    routes = [{**one, "timeout_s": 7} if one["name"] == "site" else one for one in stated()["envoy_routes"]]
    third = configuration(tmp_path, stated(envoy_routes=routes))

    assert first == second
    assert [name for name, text in third["documents"].items() if text != first["documents"][name]] == ["routes-https"]


def test_keys_are_written_to_the_listeners_file_only(tmp_path: Path) -> None:
    """Routes and bootstrap contain no key, so only one file is secret."""
    config = configuration(tmp_path)

    assert [name for name, text in config["documents"].items() if KEY in text] == ["listeners"]
    assert KEY not in config["bootstrap"]


def test_exact_paths_precede_the_longest_prefix(tmp_path: Path) -> None:
    """Routes of a host are sorted by precision. Routes for any host follow in every table."""
    hosts = table(configuration(tmp_path), "https")

    assert {name: [route["name"] for route in host["routes"]] for name, host in hosts.items()} == {
        "api.example.com": ["health", "train", "chat", "site"],
        "*": ["train", "site"],
    }
    assert hosts["*"]["routes"][0]["match"] == {"path_separated_prefix": "/train"}


def test_redirecting_listener_serves_no_route(tmp_path: Path) -> None:
    """Requests to port 80 are redirected to the port of the first TLS listener."""
    config = configuration(tmp_path)
    other = configuration(tmp_path, stated(envoy_listeners=[{**one, "port": one["port"] + 9000} for one in stated()["envoy_listeners"]]))

    assert table(config, "http")["*"]["routes"] == [{"match": {"prefix": "/"}, "redirect": {"https_redirect": True}}]
    assert table(other, "http")["*"]["routes"][0]["redirect"] == {"https_redirect": True, "port_redirect": 9443}


def test_rate_limit_is_a_token_bucket_with_a_retry_header(tmp_path: Path) -> None:
    """10 in 60 s: ten tokens, one new token every six seconds, on the route and on the test socket."""
    config = configuration(tmp_path)
    limit = table(config, "https")["*"]["routes"][0]["typed_per_filter_config"]["envoy.filters.http.local_ratelimit"]
    trial = json.loads(config["documents"]["listeners"])["resources"][-1]
    hosts = trial["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]

    assert limit["token_bucket"] == {"max_tokens": 10, "tokens_per_fill": 10, "fill_interval": "60s"}
    assert limit["response_headers_to_add"][0]["header"] == {"key": "retry-after", "value": "6"}
    assert trial["address"] == {"pipe": {"path": "/run/envoy/trial.sock", "mode": 0o600}}
    assert [host["routes"][0]["typed_per_filter_config"]["envoy.filters.http.local_ratelimit"] for host in hosts] == [limit]


def test_without_a_limit_there_is_no_test_socket(tmp_path: Path) -> None:
    """The socket exists only for the check of a limit."""
    routes = [{key: value for key, value in one.items() if key != "rate_limit"} for one in stated()["envoy_routes"]]
    listeners = json.loads(configuration(tmp_path, stated(envoy_routes=routes))["documents"]["listeners"])["resources"]

    assert [one["name"] for one in listeners] == ["http", "https", "inner"]


@pytest.mark.parametrize(("names", "clients"), [(["ada"], ["ada"]), (["*"], ["ada", "bob"])])
def test_route_admits_its_clients(tmp_path: Path, names: list[str], clients: list[str]) -> None:
    """A route admits the named clients or all clients; a public route needs no key."""
    routes = [{"name": "one", "upstream": "web", "api_keys": names}, {"name": "two", "path": "/x", "upstream": "web", "public": True}]
    two, one = table(configuration(tmp_path, stated(envoy_routes=routes)), "inner")["*"]["routes"]

    assert one["typed_per_filter_config"]["envoy.filters.http.api_key_auth"]["allowed_clients"] == clients
    assert "typed_per_filter_config" not in two


def test_only_host_names_are_resolved(tmp_path: Path) -> None:
    """One name among the endpoints enables DNS. Ejected endpoints get no requests; idle ones are checked as often."""
    clusters = {one["name"]: one for one in json.loads(configuration(tmp_path)["documents"]["clusters"])["resources"]}

    assert {name: one["type"] for name, one in clusters.items()} == {"web": "STATIC", "model": "STRICT_DNS", "jwks:far": "STRICT_DNS"}
    assert {name: one.get("dns_lookup_family") for name, one in clusters.items()} == {
        "web": None, "model": "V4_PREFERRED", "jwks:far": "V4_PREFERRED",
    }  # fmt: skip
    assert clusters["web"]["common_lb_config"] == {"healthy_panic_threshold": {"value": 0}}
    assert clusters["web"]["health_checks"][0]["no_traffic_interval"] == "5s"
    assert clusters["model"]["health_checks"][0]["tcp_health_check"] == {}
    assert clusters["model"]["transport_socket"]["typed_config"]["sni"] == "model"


def test_admin_interface_is_a_read_only_socket_for_root(tmp_path: Path) -> None:
    """It has no TCP port, other accounts cannot connect, and no path changes Envoy."""
    admin = json.loads(configuration(tmp_path)["bootstrap"])["admin"]
    paths = [one["prefix"] for one in admin["allow_paths"]]

    assert admin["address"] == {"pipe": {"path": "/run/envoy/admin.sock", "mode": 0o600}}
    assert not [path for path in ("/quitquitquit", "/logging", "/healthcheck/fail", "/drain_listeners", "/reset_counters") if path in paths]
    assert not [path for path in paths if path == "/"]


def test_defaults_of_entries_equal_the_spec() -> None:
    """The code and the argument spec contain the same defaults."""
    spec = yaml.safe_load((content.roles_dir() / "envoy" / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    spec_defaults = {
        name: {key: one["default"] for key, one in option["options"].items() if "default" in one}
        for name, option in spec.items()
        if option.get("options")
    }
    # The mapping stays absent: a default would be filled with required keys.
    spec_defaults["envoy_routes"]["rate_limit"] = {}

    assert spec_defaults == values.DEFAULTS


@pytest.mark.parametrize("endpoint", ["", "node1", "node1:", ":80", "node1:0", "node1:70000", "http://node1:80", "no de:80", "[node1]x:80"])
def test_invalid_endpoint_is_refused(endpoint: str) -> None:
    """Anything but host:port is refused."""
    with pytest.raises(ValueError, match="is not host:port"):
        values.host_and_port(endpoint)
