"""The arguments and options that several verbs share, so that one word means one thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HostsFile = Annotated[
    Path,
    typer.Argument(help="The hosts.yaml of the cluster, or the folder that holds it.", metavar="[HOSTS.YAML]", show_default=False),
]
HostsFileOption = Annotated[
    Path,
    typer.Option("--inventory", "-i", help="The hosts.yaml of the cluster, or the folder that holds it.", metavar="HOSTS.YAML"),
]
DEFAULT_HOSTS = Path("hosts.yaml")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Limit = Annotated[str | None, typer.Option("--limit", "-l", help="Only these hosts: an Ansible host pattern.", metavar="PATTERN")]
Phases = Annotated[
    list[str] | None,
    typer.Option("--phase", "-p", help="Only this phase; may be given several times.", metavar="PHASE"),
]
FromPhase = Annotated[str | None, typer.Option("--from", help="This phase and all that follow.", metavar="PHASE")]
VaultPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--vault-password-file",
        help="File, or program, that gives the Vault password.",
        metavar="FILE",
        envvar="ANSIBLE_VAULT_PASSWORD_FILE",
    ),
]
AskVaultPass = Annotated[bool, typer.Option("--ask-vault-pass", "-J", help="Ask for the Vault password.")]
AskBecomePass = Annotated[bool, typer.Option("--ask-become-pass", "-K", help="Ask for the sudo password of the hosts.")]
ExtraVars = Annotated[
    list[str] | None,
    typer.Option("--extra-vars", "-e", help="Variables that win over hosts.yaml: @FILE, or key=value.", metavar="@FILE"),
]


def ask_password(what: str, *, wanted: bool) -> str | None:
    """Ask for a password on the terminal; it is kept in memory only.

    Returns:
        None where it was not wanted.
    """
    return typer.prompt(what, hide_input=True, err=True) if wanted else None
