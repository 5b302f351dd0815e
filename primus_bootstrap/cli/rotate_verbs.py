"""The verb `secrets rotate`, which distributes a changed secret while jobs run."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from primus_bootstrap import content
from primus_bootstrap.cli.console import emit_json
from primus_bootstrap.cli.day2 import ask_yes, run_and_report, split_words
from primus_bootstrap.cli.options import (
    AsJson,
    AskBecomePass,
    AskVaultPass,
    Forks,
    VaultPasswordFile,
    Yes,
    examples,
)
from primus_bootstrap.cli.plan_view import print_plan
from primus_bootstrap.cli.run_verbs import load_for_run, run_options
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.engine.plan import make_plan

Interrupt = Annotated[
    bool, typer.Option("--interrupt", help="Also restart mounts that use the secret, which closes open files; pods are waited for.")
]


def rotatable() -> tuple[str, ...]:
    """Return the names of the secrets that can be rotated: each has a playbook."""
    return tuple(sorted(path.stem for path in (content.playbooks_dir() / "day2/rotate").glob("*.yml") if path.stem != "unknown"))


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[HOSTS.YAML] SECRET", show_default=False, help=f"The cluster's hosts.yaml, and the secret: {', '.join(rotatable())}."
    ),
]


def register(app: typer.Typer) -> None:
    """Register the verb."""
    app.command("rotate", epilog=examples("secrets rotate munge"))(rotate)


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
    """Distribute a changed secret to everything that uses it, without interrupting jobs, and verify it.

    First change the value in its Vault file. Safe to repeat, also after an interruption.
    """
    path, (secret,) = split_words(words, ["SECRET"])
    if secret not in rotatable():
        raise UsageError(f"cannot rotate {secret}: there is no such secret", fix=f"choose from: {', '.join(rotatable())}")
    options = run_options("rotate", None, forks, ask_become_pass, ask_vault_pass, vault_password_file)
    cluster = load_for_run(path, options)
    plan = make_plan(cluster, playbook=f"day2/rotate/{secret}.yml")
    if not yes and not as_json:
        print_plan(cluster, plan, verb=options.verb)
        ask_yes(f"Distribute the current value of {secret} to these hosts?", verb="secrets rotate")
    extra = ("rotate_interrupt=true",) if interrupt else ()
    report = run_and_report(cluster, plan, replace(options, extra_vars=extra), as_json=as_json)
    if as_json:
        emit_json(report.to_json())
    raise typer.Exit(report.exit_code)
