"""Rules about networks without internet access: what pods fetch themselves must come from a registry of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

# Kubespray's variables of a closed network: https://github.com/kubernetes-sigs/kubespray/blob/v2.31.0/docs/operations/offline-environment.md
_OFFLINE = ("registry_host", "files_repo")
_PUBLIC = frozenset(
    {"docker.io", "registry-1.docker.io", "gcr.io", "ghcr.io", "quay.io", "registry.k8s.io", "higress.io", "github.com"}
    | {"raw.githubusercontent.com"}
)
_PLUGIN_VARIABLES = ("higress_hub", "higress_plugin_url", "higress_wasm_plugins")


def higress_sources(context: ValidationContext) -> Iterator[Problem]:
    """Report images and plug-ins of Higress that a closed network cannot fetch. Gateways load plug-ins without containerd's mirrors."""
    host = next(iter(context.groups.get("higress", ())), "")
    if not host or "higress_hub" not in load_options() or not (reason := _reason(context, host)):
        return
    values = context.resolved_values(host, _PLUGIN_VARIABLES)
    hub = values.get("higress_hub") or load_options()["higress_hub"].default
    mirrored, registry = _mirrored(context, host), _registry(context, host)
    public = _PUBLIC | mirrored | {_server(load_options()["higress_hub"].default)}
    has_clients = host in context.variable_index.by_host("higress_clients")  # their keys are checked by plug-ins
    origin = context.origin(host, "higress_hub", "higress")
    if _server(hub) in public - mirrored:
        what = f"{reason}, but the images and plug-ins of Higress come from {_server(hub)} (higress_hub)"
        yield origin.problem(what, f"copy them to your registry, and set higress_hub: {registry}", "closed-network")
    elif _server(hub) in mirrored and has_clients and not values.get("higress_plugin_url"):
        what = f"{reason}, but gateways load the plug-ins for higress_clients from {_server(hub)}, not from containerd's mirrors"
        yield origin.problem(what, f"copy them to your registry, and set higress_plugin_url: oci://{registry}/plugins", "closed-network")
    urls = [("higress_plugin_url", values.get("higress_plugin_url"))] if has_clients else []
    urls += [("higress_wasm_plugins", one.get("url")) for one in values.get("higress_wasm_plugins") or () if isinstance(one, dict)]
    for about, url in urls:
        if url and _server(url) in public:
            what = f"{reason}, but the gateways of Higress load a plug-in from {_server(url)} ({about})"
            fix = f"copy it to your registry, and write its URL there, such as oci://{registry}/plugins/NAME:TAG"
            yield context.origin(host, about, "higress").problem(what, fix, "closed-network")


def harbor_databases(context: ValidationContext) -> Iterator[Problem]:
    """Report a scan that blocks pulls, whose database Trivy cannot load. The role finds the same for harbor_trivy_offline."""
    host = next(iter(context.groups.get("harbor", ())), "")
    if not host or "harbor_trivy_databases" not in load_options() or not (reason := _reason(context, host)):
        return
    values = context.resolved_values(host, ("harbor_trivy", "harbor_trivy_offline", "harbor_trivy_databases", "harbor_projects"))
    blocking = [one for one in values.get("harbor_projects") or () if isinstance(one, dict) and one.get("block_severity")]
    if not blocking or values.get("harbor_trivy_offline") or not values.get("harbor_trivy", True):
        return
    for about, what, fix, rule in load_filters("harbor").database_finding(values, reason, str(blocking[0].get("name"))):
        yield context.origin(host, about, "harbor").problem(what, fix, rule)


def _reason(context: ValidationContext, host: str) -> str:
    """Return why the network counts as closed; empty if it does not."""
    if context.resolved_values(host, ("airgap_bundle",)).get("airgap_bundle"):
        return "airgap_bundle is set"
    return "registry_host and files_repo are set" if all(host in context.variable_index.by_host(name) for name in _OFFLINE) else ""


def _registry(context: ValidationContext, host: str) -> str:
    return str(context.resolved_values(host, ("registry_host",)).get("registry_host") or "mirror.example.com:5000")


def _mirrored(context: ValidationContext, host: str) -> frozenset[str]:
    """Return the registries for which containerd uses a mirror."""
    name = "containerd_registries_mirrors"
    entries: Any = context.resolved_values(host, (name,)).get(name)
    return frozenset(str(one.get("prefix")) for one in entries or () if isinstance(one, dict))


def _server(reference: str) -> str:
    """Return the server in a URL or an image reference."""
    return str(reference).rpartition("://")[2].partition("/")[0]


RULES: tuple[Rule, ...] = (higress_sources, harbor_databases)
