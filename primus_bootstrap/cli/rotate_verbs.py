"""`secrets rotate`: a secret whose value was changed comes to everything that uses it, while jobs run and files are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from primus_bootstrap import content
from primus_bootstrap.cli.console import emit_json
from primus_bootstrap.cli.day2 import ask_yes, run_and_report, split_words
from primus_bootstrap.cli.options import (  # noqa: TC001 - typer reads them
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Forks,
    VaultPasswordFile,
    Yes,
)
from primus_bootstrap.cli.run_verbs import given_options, print_plan
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster

Words = Annotated[list[str], typer.Argument(help="[hosts.yaml] and the secret; a wrong name shows them all.", metavar="[HOSTS] SECRET")]
Interrupt = Annotated[
    bool, typer.Option("--interrupt", help="Also where a mount must start anew for it, which ends open files; with pods, once theirs have.")
]


def rotatable() -> tuple[str, ...]:
    """Return the secrets that can be rotated: each is a playbook."""
    return tuple(sorted(path.stem for path in (content.playbooks_dir() / "day2/rotate").glob("*.yml") if path.stem != "unknown"))


def register(app: typer.Typer) -> None:
    """Mount the verb."""
    app.command("rotate")(rotate)


def rotate(
    words: Words,
    *,
    interrupt: Interrupt = False,
    yes: Yes = False,
    forks: Forks = 0,
    ask_become_pass: AskBecomePass = False,
    ask_vault_pass: AskVaultPass = False,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Bring a secret that was changed in Vault or its file to all that use it, in an order that loses nothing, and verify it.

    Change its value first, where hosts.yaml takes it from. Safe to repeat, and to kill and repeat.
    """
    path, (secret,) = split_words(words, ["SECRET"])
    if secret not in rotatable():
        raise PlanError(f"no secret that can be rotated is called {secret}", fix=f"choose from: {', '.join(rotatable())}")
    options = given_options("rotate", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_cluster(path, vault_password_file=vault_password_file, ask_vault_pass=options.vault_password or None)
    made = make_plan(cluster, playbook=f"day2/rotate/{secret}.yml")
    if not yes and not as_json:
        print_plan(cluster, made)
        ask_yes(f"Bring {secret} to these hosts, with the value that is stated now?", verb="secrets rotate")
    words_ = ("rotate_interrupt=true",) if interrupt else ()
    report = run_and_report(cluster, made, replace(options, extra_vars=words_), as_json=as_json)
    if as_json:
        emit_json(report.to_json())
    raise typer.Exit(report.exit_code)
