"""Rules about the provider and the version of the Kubernetes cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import VARIABLE, Release, load_release, load_releases
from primus_bootstrap.inventory.rules.group_membership import is_existing_kubernetes
from primus_bootstrap.inventory.source.yaml_values import is_deferred, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

# Variables of Kubespray that this project sets, because other parts depend on the values.
FIXED = ("artifacts_dir", "credentials_dir", "kubeconfig_localhost")
# An add-on of Kubespray, and the group whose chart installs the same objects in a newer version.
_ADDONS = {
    "cert_manager_enabled": "kube_cert_manager",
    "gateway_api_enabled": "kube_gateway_api",
    "prometheus_operator_crds_enabled": "kube_prometheus_stack",
}


def existing_without_kubeconfig(context: ValidationContext) -> Iterator[Problem]:
    """Report an existing cluster without a kubeconfig."""
    provider = _provider(context)
    if provider is not None and value_of(provider.node) == "existing" and not context.variable_index.by_host("kubernetes_kubeconfig"):
        what = "kubernetes_provider is existing, but kubernetes_kubeconfig is not set"
        fix = "set kubernetes_kubeconfig to the path of the administrator's kubeconfig, relative to the folder of hosts.yaml"
        yield provider.origin.problem(what, fix, "kubernetes-provider")


def kubespray_without_hosts(context: ValidationContext) -> Iterator[Problem]:
    """Report the provider Kubespray without hosts to install Kubernetes on."""
    provider = _provider(context)
    if provider is not None and value_of(provider.node) == "kubespray" and not context.kubernetes_hosts:
        what = "kubernetes_provider is kubespray, but kube_control_plane has no hosts"
        fix = "add hosts to kube_control_plane, etcd and kube_node, or delete kubernetes_provider"
        yield provider.origin.problem(what, fix, "kubernetes-provider")


def two_providers(context: ValidationContext) -> Iterator[Problem]:
    """Report different providers or releases for different hosts; one hosts.yaml describes one cluster."""
    for name in ("kubernetes_provider", VARIABLE):
        first, *others = context.variable_index.by_name.get(name, ()) or (None,)
        for definition in others:
            if first is not None and value_of(definition.node) != value_of(first.node):
                what = f"{name} has another value here than at {first.origin.file}:{first.origin.line}"
                yield definition.origin.problem(what, "set it once, under `vars:` of `all`", "kubernetes-provider")


def kube_version(context: ValidationContext) -> Iterator[Problem]:
    """Report a Kubernetes version that the release of Kubespray cannot install."""
    release = _release(context)
    if is_existing_kubernetes(context) or release is None:
        return
    for definition in context.variable_index.by_name.get("kube_version", ()):
        if is_deferred(definition.node):
            continue
        text = str(definition.node.value)
        if text not in release.kubernetes:
            origin = definition.origin
            what = f"kube_version {text}: Kubespray {release.version} installs only {release.oldest} to {release.newest}"
            yield origin.problem(what, release.version_fix(text), "kube-version")


def variable_of_another_release(context: ValidationContext) -> Iterator[Problem]:
    """Report variables that the release of Kubespray does not read, because they are new or were renamed or removed."""
    release = _release(context)
    if is_existing_kubernetes(context) or release is None:
        return
    fixes = {**dict.fromkeys(release.removed, "delete it"), **{old: f"rename it to {new}" for old, new in release.renamed.items()}}
    for other in load_releases().values():
        earlier = {new: old for old, new in other.renamed.items()}
        for name in other.added - release.added:
            fixes[name] = f"rename it to {earlier[name]}" if name in earlier else f"delete it, or set `{VARIABLE}: {other.version}`"
    for name, fix in fixes.items():
        for definition in context.variable_index.by_name.get(name, ()):
            yield definition.origin.problem(f"{name}: Kubespray {release.version} does not read this variable", fix, "kubespray-release")


def fixed_variable(context: ValidationContext) -> Iterator[Problem]:
    """Report variables of Kubespray that this project sets itself."""
    for name in FIXED:
        for definition in context.variable_index.by_name.get(name, ()):
            what = f"primus-bootstrap sets {name} to a path in the cluster's state folder"
            yield definition.origin.problem(
                what, "delete it; to move the state folder, set the environment variable PRIMUS_STATE_DIR", "kubespray-fixed"
            )


def installed_twice(context: ValidationContext) -> Iterator[Problem]:
    """Report an add-on of Kubespray and a chart that install the same objects; each would overwrite the other on every run."""
    for name, group in _ADDONS.items():
        for definition in context.variable_index.by_name.get(name, ()):
            if context.groups.get(group) and value_of(definition.node) is True:
                what = f"{name} is true and {group} has hosts: Kubespray's add-on and the chart would install the same objects"
                yield definition.origin.problem(what, f"delete {name}, or remove the hosts from {group}", "installed-twice")


def _provider(context: ValidationContext) -> Definition | None:
    """Return the first definition of `kubernetes_provider`; None if there is none, or only a run can resolve it."""
    definition = next(iter(context.variable_index.by_name.get("kubernetes_provider", ())), None)
    return None if definition is None or is_deferred(definition.node) else definition


def _release(context: ValidationContext) -> Release | None:
    """Return the release of Kubespray; None if there is no such release, or only a run can resolve its name."""
    definition = next(iter(context.variable_index.by_name.get(VARIABLE, ())), None)
    if definition is not None and is_deferred(definition.node):
        return None
    try:
        return load_release("" if definition is None else str(value_of(definition.node)))
    except PlanError:  # the check of types reports a value that is not one of the choices
        return None


RULES: tuple[Rule, ...] = (
    existing_without_kubeconfig,
    kubespray_without_hosts,
    two_providers,
    kube_version,
    variable_of_another_release,
    fixed_variable,
    installed_twice,
)
