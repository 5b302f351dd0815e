"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_SELECTION = "Which hosts and phases"
_PASSWORDS = "Passwords"

HostsFile = Annotated[
    Path,
    typer.Argument(help="The cluster's hosts.yaml, or its folder; hosts.yaml by default.", metavar="HOSTS.YAML", show_default=False),
]
HostsFileOption = Annotated[Path, typer.Option("--inventory", "-i", help="The cluster's hosts.yaml, or its folder.", metavar="HOSTS.YAML")]
DEFAULT_HOSTS = Path("hosts.yaml")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Limit = Annotated[
    str | None,
    typer.Option("--limit", "-l", help="Only hosts that match this Ansible pattern.", metavar="PATTERN", rich_help_panel=_SELECTION),
]
Phases = Annotated[
    list[str] | None,
    typer.Option("--phase", "-p", help="Only this phase; repeat for more.", metavar="PHASE", rich_help_panel=_SELECTION),
]
FromPhase = Annotated[str | None, typer.Option("--from", help="Start with this phase.", metavar="PHASE", rich_help_panel=_SELECTION)]
Show = Annotated[
    str | None,
    typer.Option("--show", help="Show instead how a part is configured. PART is kubernetes: Kubespray's variables.", metavar="PART"),
]
VaultPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--vault-password-file",
        help="File with the Vault password, or program that prints it.",
        metavar="FILE",
        envvar="ANSIBLE_VAULT_PASSWORD_FILE",
        rich_help_panel=_PASSWORDS,
    ),
]
AskVaultPass = Annotated[bool, typer.Option("--ask-vault-pass", "-J", help="Ask for the Vault password.", rich_help_panel=_PASSWORDS)]
AskBecomePass = Annotated[
    bool, typer.Option("--ask-become-pass", "-K", help="Ask for the sudo password of the hosts.", rich_help_panel=_PASSWORDS)
]
ExtraVars = Annotated[
    list[str] | None,
    typer.Option("--extra-vars", "-e", help="Variables that override hosts.yaml; repeat for more.", metavar="@FILE|KEY=VALUE"),
]
Forks = Annotated[
    int, typer.Option("--forks", "-f", min=0, help="Number of hosts at the same time; 0 for the value in ansible.cfg.", metavar="N")
]
Timeout = Annotated[float, typer.Option("--timeout", "-t", min=1.0, help="Seconds to wait for each host.", metavar="SECONDS")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Confirmed = Annotated[
    str, typer.Option("--confirm", help="Name of the cluster, as confirmation; asked for otherwise.", metavar="CLUSTER_NAME")
]
Words = Annotated[
    list[str], typer.Argument(metavar="[HOSTS.YAML] NAME", show_default=False, help="The cluster's hosts.yaml, and the name of the host.")
]
OldAndNew = Annotated[
    list[str],
    typer.Argument(metavar="[HOSTS.YAML] OLD NEW", show_default=False, help="The cluster's hosts.yaml, the old and the new host."),
]


def is_inventory(word: str) -> bool:
    """Return whether a word of the command line is a hosts.yaml, or a folder with one."""
    path = Path(word)
    return (path.is_file() and path.name == DEFAULT_HOSTS.name) or (path / DEFAULT_HOSTS).is_file()


def examples(*commands: str) -> str:
    """Return the examples at the end of a verb's help."""
    return "\n\n".join(["Examples:", *(f"  primus-bootstrap {command}" for command in commands)])


def ask_password(what: str, *, ask: bool) -> str | None:
    """Ask for a password on the terminal; return None if `ask` is false."""
    return typer.prompt(what, hide_input=True, err=True) if ask else None
