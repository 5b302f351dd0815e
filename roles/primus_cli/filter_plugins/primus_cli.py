"""Filters of the role `primus_cli`: check settings against the schema of primus-cli."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def primus_cli_problem(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the problems of settings by section, with fixes, as one text; empty if there are none.

    Raises:
        AnsibleFilterError: primus_bootstrap cannot be imported.
    """
    try:
        from primus_bootstrap.core.errors import UsageError  # noqa: PLC0415 - where it is missing the error has a fix
        from primus_bootstrap.launch.settings.layered_settings import Given, SettingsFiles, check_names, resolve  # noqa: PLC0415
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
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
    """Return the paths of a section's settings, like direct.venv; `section` is an item of `dict2items`."""
    return [f"{section['key']}.{name}" for name in section["value"]]


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"primus_cli_paths": primus_cli_paths, "primus_cli_problem": primus_cli_problem}
