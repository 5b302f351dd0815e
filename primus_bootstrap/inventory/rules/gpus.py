"""Rules about GPU hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

_GROUP, _MODE, _TRAINING, _ACCOUNTS = (
    "gpu_env_device_group",
    "gpu_env_device_mode",
    "users_groups_training_group",
    "users_groups_accounts",
)
_SHOWN = 3


def gpu_group(context: ValidationContext) -> Iterator[Problem]:
    """Report accounts outside the group of the GPUs: from the next boot on, they could not open them."""
    reported = set()
    for host in context.groups.get("gpu_node", ()):
        values = context.resolved_values(host, (_GROUP, _MODE, _TRAINING, _ACCOUNTS))
        outside = _outside(values)
        origin = context.origin(host, _GROUP, "gpu_node")
        if outside and origin not in reported:
            reported.add(origin)
            group = values[_GROUP]
            shown = ", ".join(outside[:_SHOWN]) + (f" and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else "")
            what = f"{_GROUP} is {group}, and {shown} of {_ACCOUNTS} could not open the GPUs: not in this group"
            fix = f"add {group} to their `groups`, or remove {_GROUP}: then the training group, which has all accounts, can open them"
            yield origin.problem(what, fix, "gpu-group")


def _outside(values: Mapping[str, Any]) -> list[str]:
    """Return the present accounts that are not in the stated group; none if the training group or everybody can open the GPUs."""
    group = values.get(_GROUP, "auto")
    everybody = str(values.get(_MODE, "0660"))[-1:] in ("6", "7")
    if group in ("", "auto", values.get(_TRAINING, "training")) or everybody:
        return []
    accounts = values.get(_ACCOUNTS)
    present = [one for one in accounts if isinstance(one, dict) and one.get("state") != "absent"] if isinstance(accounts, list) else []
    return [str(one.get("name")) for one in present if group not in (one.get("group"), *(one.get("groups") or ()))]


RULES: tuple[Rule, ...] = (gpu_group,)
