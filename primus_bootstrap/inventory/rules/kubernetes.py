"""Rules about who makes the Kubernetes cluster and in which version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.rules.group_membership import kubernetes_is_given
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

# What Kubespray is always told, because other parts look there.
FIXED = ("artifacts_dir", "credentials_dir", "kubeconfig_localhost")
# An add-on of Kubespray, and the group whose chart brings the same thing in a newer version.
_TWICE = {
    "cert_manager_enabled": "kube_cert_manager",
    "gateway_api_enabled": "kube_gateway_api",
    "prometheus_operator_crds_enabled": "kube_prometheus_stack",
}
_KUBE_GROUPS = ("kube_control_plane", "kube_node", "etcd")


def existing_without_kubeconfig(reading: ValidationContext) -> Iterator[Problem]:
    """A cluster that somebody else made is reached with a file that nobody but the user can name."""
    stated = _provider(reading)
    if stated is not None and value_of(stated.node) == "existing" and not reading.merged.of("kubernetes_kubeconfig"):
        what = "kubernetes_provider is existing and kubernetes_kubeconfig is not set: nobody says how to reach the cluster"
        fix = "set kubernetes_kubeconfig to the administrator's kubeconfig, a path below the folder of hosts.yaml"
        yield Problem(stated.origin.file, stated.origin.line, what, fix, "kubernetes-provider")


def kubespray_without_hosts(reading: ValidationContext) -> Iterator[Problem]:
    """Kubespray installs on hosts; without any, whoever asked for it would wait for a cluster that nobody makes."""
    stated = _provider(reading)
    if stated is not None and value_of(stated.node) == "kubespray" and not any(reading.groups.get(group) for group in _KUBE_GROUPS):
        what = "kubernetes_provider is kubespray and no host is in kube_control_plane"
        fix = "put hosts into kube_control_plane, etcd and kube_node, or take kubernetes_provider away"
        yield Problem(stated.origin.file, stated.origin.line, what, fix, "kubernetes-provider")


def two_providers(reading: ValidationContext) -> Iterator[Problem]:
    """One hosts.yaml is one cluster: some of its hosts cannot be Kubespray's and the others somebody else's."""
    stated = reading.merged.by_name.get("kubernetes_provider", ())
    for definition in stated[1:]:
        if value_of(definition.node) != value_of(stated[0].node):
            what = f"kubernetes_provider is set twice, here and at {stated[0].origin.file}:{stated[0].origin.line}, to different values"
            yield Problem(definition.origin.file, definition.origin.line, what, "set it once, for all", "kubernetes-provider")


def kube_version(reading: ValidationContext) -> Iterator[Problem]:
    """A release of Kubespray installs the versions whose sums it knows, and says so of others with a type error or half way."""
    release = load_release()
    if kubernetes_is_given(reading):
        return
    for definition in reading.merged.by_name.get("kube_version", ()):
        if is_template(definition.node) or is_vaulted(definition.node):
            continue
        text = str(definition.node.value)
        if text not in release.kubernetes:
            origin = definition.origin
            what = f"kube_version {text}: Kubespray {release.version} installs {release.oldest} to {release.newest}"
            yield Problem(origin.file, origin.line, what, release.version_fix(text), "kube-version")


def fixed_variable(reading: ValidationContext) -> Iterator[Problem]:
    """The kubeconfig and Kubespray's own secrets lie where every other part looks for them."""
    for name in FIXED:
        for definition in reading.merged.by_name.get(name, ()):
            what = f"{name} is set by primus-bootstrap, below the cluster's state folder"
            yield Problem(
                definition.origin.file, definition.origin.line, what, "take it away; PRIMUS_STATE_DIR moves the folder", "kubespray-fixed"
            )


def brought_twice(reading: ValidationContext) -> Iterator[Problem]:
    """An add-on of Kubespray and a chart that own the same objects overwrite each other on every run."""
    for name, group in _TWICE.items():
        for definition in reading.merged.by_name.get(name, ()):
            if reading.groups.get(group) and value_of(definition.node) is True:
                what = f"{name} is true and {group} has hosts: Kubespray's add-on and the chart would own the same objects"
                yield Problem(definition.origin.file, definition.origin.line, what, f"take {name} away, or empty {group}", "brought-twice")


def _provider(reading: ValidationContext) -> Definition | None:
    found = next(iter(reading.merged.by_name.get("kubernetes_provider", ())), None)
    return None if found is None or is_template(found.node) or is_vaulted(found.node) else found


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (
    existing_without_kubeconfig,
    kubespray_without_hosts,
    two_providers,
    kube_version,
    fixed_variable,
    brought_twice,
)
