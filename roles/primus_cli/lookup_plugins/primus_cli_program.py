"""Ansible lookup `primus_cli_program`: build primus-cli with the training programs as one file, and return its path on the controller.

ansible.builtin.copy needs a file on the controller. Builds are reproducible, so an unchanged host stays unchanged.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):
    """Takes no terms."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_: Any) -> list[str]:  # noqa: ARG002 - Ansible's signature
        """Return the path, which is in Ansible's temporary folder. The file is built once per run."""
        try:
            from primus_bootstrap.launch import self_exec, zipapp_file  # noqa: PLC0415 - if it is missing, the error has a fix
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        path = Path(constants.DEFAULT_LOCAL_TMP) / "primus-cli.pyz"
        if not path.is_file():
            zipapp_file.write_zipapp(path, workloads=self_exec.workloads_folder("", os.environ))
        return [str(path)]
