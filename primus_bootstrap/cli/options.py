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
Show = Annotated[
    str | None,
    typer.Option("--show", help="Instead of the plan: each value that Kubespray is told, and why (kubernetes).", metavar="PART"),
]
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
Forks = Annotated[int, typer.Option("--forks", "-f", min=0, help="Hosts worked on at the same time; 0 is what ansible.cfg says.")]
Timeout = Annotated[float, typer.Option("--timeout", "-t", min=1.0, help="Seconds that one host may take.", metavar="SECONDS")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the first host is touched.")]
Confirmed = Annotated[str, typer.Option("--confirm", help="The cluster's name, which says that this is meant.", metavar="CLUSTER_NAME")]
Words = Annotated[list[str], typer.Argument(metavar="[HOSTS.YAML] NAME", show_default=False, help="The cluster's hosts.yaml and the host.")]
OldAndNew = Annotated[
    list[str],
    typer.Argument(metavar="[HOSTS.YAML] OLD NEW", show_default=False, help="The cluster's hosts.yaml, the old and the new host."),
]


def ask_password(what: str, *, wanted: bool) -> str | None:
    """Ask for a password on the terminal; it is kept in memory only.

    Returns:
        None where it was not wanted.
    """
    return typer.prompt(what, hide_input=True, err=True) if wanted else None
