"""Whether primus-cli takes the settings of an inventory: the filter of this role, the schema is the program's own."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.commandline.layered_settings import Given, SettingsFiles, check_names, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def primus_cli_problem(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what is wrong with settings by section, with fixes, in one text; empty where nothing is."""
    try:
        check_names(settings)
        given = [
            Given(f"{section}.{name}", value, "primus_cli_settings") for section, keys in settings.items() for name, value in keys.items()
        ]
        resolve(SettingsFiles(), {}, given)
    except UsageError as error:
        return str(error)
    return ""


def primus_cli_paths(section: Mapping[str, Any]) -> list[str]:
    """Return the paths of a section's settings, like direct.venv; the section as `dict2items` gives it."""
    return [f"{section['key']}.{name}" for name in section["value"]]


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"primus_cli_paths": primus_cli_paths, "primus_cli_problem": primus_cli_problem}
