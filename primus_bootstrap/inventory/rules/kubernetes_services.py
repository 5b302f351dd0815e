"""Rules about volumes, gateway and image registry on Kubernetes, by the judgements that the roles' preflights use too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from primus_bootstrap.inventory.rules.context import ValidationContext


def juicefs_csi(reading: ValidationContext) -> Iterator[Problem]:
    """A driver without metadata engine or bucket would be installed, and every claim would wait for ever."""
    if not _stands(reading, "juicefs_csi"):
        return
    clients = reading.groups.get("juicefs_client", ())
    variables = _variables(reading, clients[0], ("juicefs_name", "juicefs_meta_url"))[0] if clients else {"juicefs_meta_url": "-"}
    mounted = "" if variables.get("juicefs_meta_url") else variables.get("juicefs_name", "jfs")
    yield from _problems(reading, "juicefs_csi", bool(reading.groups.get("redis")), mounted)


def higress(reading: ValidationContext) -> Iterator[Problem]:
    """Two routes with one host, or a client that nobody names, would be taken by the API server and found out by the clients."""
    if _stands(reading, "higress"):
        yield from _problems(reading, "higress", bool(reading.groups.get("harbor")))


def harbor(reading: ValidationContext) -> Iterator[Problem]:
    """Without a storage class its pods would wait for ever, and on JuiceFS its database would crawl."""
    if _stands(reading, "harbor"):
        volumes = reading.groups.get("juicefs_csi", ())
        stated = _variables(reading, volumes[0], ("juicefs_csi_storage_class",))[0] if volumes else {}
        own = stated.get("juicefs_csi_storage_class", "juicefs") if volumes else ""
        yield from _problems(reading, "harbor", own, bool(reading.groups.get("kube_cert_manager")))


def _stands(reading: ValidationContext, role: str) -> bool:
    """Whether the chart is part of the cluster, and of this set of roles."""
    return bool(reading.groups.get(role)) and f"{role}_chart_version" in load_options()


def _variables(reading: ValidationContext, host: str, names: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
    """Return those that are stated, and the names of those that only a run knows.

    Of a list with a secret by reference, what is written counts: names are judged, the secret is not.
    """
    stated, unknown = {}, set()
    for name in names:
        written = reading.merged.of(name).get(host)
        if written is None:
            continue
        try:
            stated[name] = reading.view.variables(host)[name]
        except InventoryError:  # a template that fails is reported by a rule of its own
            stated[name] = value_of(written.node)
            if not isinstance(stated[name], list):
                del stated[name]
                unknown.add(name)
    return stated, unknown


def _problems(reading: ValidationContext, role: str, *more: Any) -> Iterator[Problem]:
    """Yield what the role's judgement finds, on the host from which its chart is installed."""
    host, filters = reading.groups[role][0], load_filters(role)
    stated, unknown = _variables(reading, host, filters.VARIABLES)
    for about, what, fix, rule in filters.findings(stated, *more):
        if about not in unknown and "{{" not in what:
            origin = reading.merged.origin(host, about) or reading.group_origin(role)
            yield Problem(origin.file, origin.line, what, fix, rule)


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (juicefs_csi, higress, harbor)
