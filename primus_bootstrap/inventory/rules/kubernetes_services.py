"""Rules about volumes, gateway and image registry on Kubernetes, by the checks of the roles `juicefs_csi`, `higress` and `harbor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext


def juicefs_csi(context: ValidationContext) -> Iterator[Problem]:
    """Report a CSI driver without metadata engine or bucket; every volume claim would stay pending."""
    if not _is_installed(context, "juicefs_csi"):
        return
    clients = context.groups.get("juicefs_client", ())
    values = _values(context, clients[0], ("juicefs_name", "juicefs_meta_url"))[0] if clients else {"juicefs_meta_url": "-"}
    mounted = "" if values.get("juicefs_meta_url") else values.get("juicefs_name", "jfs")
    yield from _problems(context, "juicefs_csi", bool(context.groups.get("redis")), mounted)


def higress(context: ValidationContext) -> Iterator[Problem]:
    """Report routes with the same host and clients that do not exist; the API server accepts both."""
    if _is_installed(context, "higress"):
        yield from _problems(context, "higress", bool(context.groups.get("harbor")))


def harbor(context: ValidationContext) -> Iterator[Problem]:
    """Report a missing storage class, with which the pods would stay pending, and a database on JuiceFS, which is too slow."""
    if _is_installed(context, "harbor"):
        drivers = context.groups.get("juicefs_csi", ())
        values = _values(context, drivers[0], ("juicefs_csi_storage_class",))[0] if drivers else {}
        storage_class = values.get("juicefs_csi_storage_class", "juicefs") if drivers else ""
        yield from _problems(context, "harbor", storage_class, bool(context.groups.get("kube_cert_manager")))


def _is_installed(context: ValidationContext, role: str) -> bool:
    """Return whether the group of a chart has hosts and the content folder has its role."""
    return bool(context.groups.get(role)) and f"{role}_chart_version" in load_options()


def _values(context: ValidationContext, host: str, names: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
    """Return the variables that are set for a host, and the names of those that only a run can resolve.

    A list whose items refer to secrets is returned unresolved: the checks read its names, not its secrets.
    """
    values, unknown = {}, set()
    for name in names:
        definition = context.variable_index.by_host(name).get(host)
        if definition is None or value_of(definition.node) is None:  # a variable without a value is another rule's
            continue
        try:
            values[name] = context.view.variables(host)[name]
        except InventoryError:  # `unresolvable` reports a template that fails
            raw = value_of(definition.node)
            if isinstance(raw, list):
                values[name] = raw
            else:
                unknown.add(name)
    return values, unknown


def _problems(context: ValidationContext, role: str, *arguments: Any) -> Iterator[Problem]:
    """Yield the findings of a role's checks, for the host from which its chart is installed."""
    host, filters = context.groups[role][0], load_filters(role)
    values, unknown = _values(context, host, filters.VARIABLES)
    for about, what, fix, rule in filters.findings(values, *arguments):
        if about not in unknown and "{{" not in what:
            yield context.origin(host, about, role).problem(what, fix, rule)


RULES: tuple[Rule, ...] = (juicefs_csi, higress, harbor)
