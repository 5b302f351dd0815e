"""The verbs `init`, `import`, `validate`, `schema` and `secrets init`, which work on files and contact no host."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import count, emit, emit_json, emit_table, plain_table, program, say, short
from primus_bootstrap.cli.missing_secrets import generate_secrets, print_secrets
from primus_bootstrap.cli.options import DEFAULT_HOSTS, AsJson, AskVaultPass, HostsFile, VaultPasswordFile, ask_password, examples
from primus_bootstrap.cli.printed_commands import with_inventory
from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory.edit import scaffold
from primus_bootstrap.inventory.load import validate as validate_inventory
from primus_bootstrap.inventory.schema import reference
from primus_bootstrap.inventory.schema.groups import load_groups
from primus_bootstrap.inventory.schema.specs import load_common_variables, load_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.inventory.schema.specs import Option

secrets_app = typer.Typer(no_args_is_help=True, help="Generate secrets in an Ansible Vault file, and rotate them.")


class Format(StrEnum):
    """The output formats of `schema`."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON_SCHEMA = "json-schema"


def register(app: typer.Typer) -> None:
    """Register the verbs."""
    app.command("init", epilog=examples("init my-cluster --template mi300x"))(init)
    app.command("validate", epilog=examples("validate", "validate inventory/prod --json"))(validate)
    app.command("schema", epilog=examples("schema", "schema slurm", "schema baseline_memlock_kib", "schema --groups"))(schema)
    app.command("import", epilog=examples("import old/hosts.ini --output hosts.yaml"))(import_)
    app.add_typer(secrets_app, name="secrets")


def validate(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    vault_password_file: VaultPasswordFile = None,
    ask_vault_pass: AskVaultPass = False,
    as_json: AsJson = False,
) -> None:
    """Check hosts.yaml and its variable files, and report all problems at once. Contacts no host.

    A warning names a likely mistake, such as a missing file with a public key. It does not change the exit code.
    """
    password = ask_password("Vault password", ask=ask_vault_pass)
    result = validate_inventory(hosts, vault_password_file=vault_password_file, ask_vault_pass=password)
    if result.cluster is None:
        raise InventoryError(result.problems)
    counts = {
        "hosts": len(result.cluster.hosts),
        "groups": len([name for name in result.cluster.groups if name not in ("all", "ungrouped")]),
        "variables": result.variables,
        "deferred": len(result.deferred),
    }
    if as_json:
        deferred = [
            {"variable": item.variable, "file": item.origin.file, "line": item.origin.line, "why": item.why} for item in result.deferred
        ]
        warnings = [asdict(warning) for warning in result.warnings]
        emit_json({"cluster": result.cluster.name, "problems": [], **counts, "deferred_values": deferred, "warnings": warnings})
        return
    for warning in result.warnings:
        say(f"warning: {replace(warning, fix=with_inventory(warning.fix, hosts))}")
    head = f"{hosts}: {count(counts['hosts'], 'host')}, {count(counts['groups'], 'group')}, {count(counts['variables'], 'variable')}"
    late = counts["deferred"]
    tail = f"; {count(late, 'value')} (templates, Vault) will be checked during the run" if late else ""
    emit(f"{head}{tail}")


def init(
    folder: Annotated[Path, typer.Argument(help="The folder; created if it is missing.", metavar="DIR")] = Path(),
    *,
    template: Annotated[
        str, typer.Option("--template", "-t", help=f"The example to start from: {', '.join(scaffold.templates())}.", metavar="NAME")
    ] = "lab",
) -> None:
    """Create a folder with a commented hosts.yaml, group_vars/ and .gitignore. Never overwrites a file."""
    files = scaffold.make_scaffold(template, folder)
    scaffold.write_scaffold(files)
    for file in files:
        emit(f"{'added to' if file.appended else 'wrote'} {file.path}")
    hosts = folder / "hosts.yaml"
    verbs = [f"{verb} {hosts}" for verb in ("validate", "plan", "apply")]
    if template == "lab":
        verbs.insert(0, f"lab up --dir {folder}")
        say("\nNext:")
    else:
        say(f"\nNext: edit names and addresses in {hosts}, and accounts and settings in its group_vars/, then run")
    for verb in verbs:
        say(f"  {program()} {verb}")


def schema(
    name: Annotated[
        str, typer.Argument(help="Only this variable, or only the variables of this role.", metavar="NAME", show_default=False)
    ] = "",
    *,
    role: Annotated[
        str, typer.Option("--role", "-r", help="Only variables of this role; `cluster` for those of no role.", metavar="ROLE")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="List advanced variables as well.")] = False,
    groups: Annotated[bool, typer.Option("--groups", "-g", help="List the groups instead of the variables.")] = False,
    style: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """List the variables that hosts.yaml can set: type, default, choices, unit, meaning.

    Without NAME, ROLE or --all it lists those that most clusters set, by topic, with examples. JSON Schema always has all.
    """
    style = Format.JSON_SCHEMA if as_json else style
    if groups:
        _groups(style)
        return
    options = reference.select_options(role=role, name=name)
    common = not (role or name or everything)
    if style is Format.JSON_SCHEMA:
        emit_json(reference.json_schema(options, closed=not role and not name))
    elif style is Format.MARKDOWN:
        emit(reference.common_markdown() if common else reference.markdown(options))
    elif common:
        _common_table()
    else:
        _table(options)


def _groups(style: Format) -> None:
    if style is Format.JSON_SCHEMA:
        emit_json({name: {"owner": group.owner, "meaning": group.meaning} for name, group in load_groups().items()})
    elif style is Format.MARKDOWN:
        emit(reference.markdown_groups())
    else:
        table = plain_table("group", "read by", "meaning")
        for group in load_groups().values():
            table.add_row(group.name, group.owner, group.meaning)
        emit_table(table)


def _table(options: Sequence[Option]) -> None:
    table = plain_table("variable", "owner", "type", "default", "meaning")
    for row in reference.rows(options):
        meaning = f"{row.meaning} One of: {row.choices}." if row.choices else row.meaning
        table.add_row(*(_plain(cell) for cell in (row.name, row.owner, _kind(row), _short(row.default), meaning)))
    emit_table(table)


def _common_table() -> None:
    options = load_options()
    table = plain_table("variable", "type", "example", "meaning")
    for topic, variables in load_common_variables().items():
        table.add_row(f"[bold]{topic}[/bold]")
        for name, example in variables.items():
            row = next(iter(reference.rows([options[name]])))
            first_sentence = row.meaning.partition(". ")[0].removesuffix(".")
            table.add_row(*(_plain(cell) for cell in (name, _kind(row), _short(reference.example_of(example)), first_sentence)))
    emit_table(table)
    advanced = len(options) - sum(len(variables) for variables in load_common_variables().values())
    say(f"\n{advanced} advanced variables are not shown: {program()} schema --all")


def _kind(row: reference.Row) -> str:
    return ", ".join(word for word in (row.type, row.unit, "required" * row.required, "secret" * row.no_log) if word)


def _plain(text: str) -> str:
    """Escape square brackets, which rich would read as styles."""
    return text.replace("[", r"\[")


def _short(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def import_(
    source: Annotated[Path, typer.Argument(help="An INI inventory of Ansible, Kubespray or DeepOps.", metavar="HOSTS.INI")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The new file; hosts.yaml next to the old file by default.", metavar="FILE")
    ] = None,
) -> None:
    """Convert an INI inventory to hosts.yaml, list every change, and validate the result. Never overwrites a file."""
    # Loading Ansible takes 0.2 s, so only verbs that need it load it.
    from primus_bootstrap.inventory.ini.conversion import import_ini, write_import  # noqa: PLC0415

    target = output or source.parent / DEFAULT_HOSTS
    imported = import_ini(source)
    new_folder = not target.parent.exists()
    write_import(imported, target)
    if new_folder:
        say(f"created the folder {target.parent}")
    for change in imported.changes:
        say(f"{source}:{change.line}: {change.what}" if change.line else f"{source}: {change.what}")
    for name in ("group_vars", "host_vars"):
        if (source.parent / name).is_dir() and not (target.parent / name).is_dir():
            say(f"{source}: {source.parent / name} does not apply to {target}: copy it to {target.parent / name}")
    emit(f"wrote {target}")
    if problems := (*imported.problems, *validate_inventory(target).problems):
        say("")
        raise InventoryError(problems)
    say(f"Next: {program()} plan {short(target)}")


@secrets_app.command("init", epilog=examples("secrets init"))
def secrets_init(
    hosts: HostsFile = DEFAULT_HOSTS,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The Vault file; group_vars/all/vault.yml next to hosts.yaml by default.", metavar="FILE"),
    ] = None,
    vault_password_file: VaultPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Generate every secret that this inventory needs and that has no value, and write them to a Vault file."""
    found = generate_secrets(hosts, output=output, vault_password_file=vault_password_file)
    if as_json:
        emit_json(found.to_json())
    elif not found.missing:
        emit("no secret is missing; nothing was written")
    else:
        print_secrets(found)
        say(f"Next: {program()} apply {short(found.cluster.path)} --vault-password-file {found.password_file}")
