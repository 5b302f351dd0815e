"""Filters of the role `workload`: check a job's variables, and build job.json."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType


def workload_new_id(name: str) -> str:
    """Return a new id for a job of this name."""
    new_id: str = _rules().job_request.new_id(name)
    return new_id


def workload_problems(variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return one line per mistake of a job, with its fix."""
    lines: list[str] = _rules().problems(variables, groups, hostvars)
    return lines


def workload_document(variables: Mapping[str, Any], groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of job.json for a job without mistakes."""
    job: dict[str, Any] = _rules().document(variables, groups, hostvars)
    return job


def _rules() -> ModuleType:
    """Return the rules that `workload submit` uses too.

    Raises:
        AnsibleFilterError: primus_bootstrap cannot be imported.
    """
    try:
        from primus_bootstrap.inventory import job_rules  # noqa: PLC0415 - where it is missing the error has a fix
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    return job_rules


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {one.__name__: one for one in (workload_new_id, workload_problems, workload_document)}
