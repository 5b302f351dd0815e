"""The entry point of `primus-bootstrap`: registers the verbs and turns errors into messages and exit codes."""

from __future__ import annotations

import gc
import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from primus_bootstrap import __version__
from primus_bootstrap.cli import (
    bench_verbs,
    bundle_verbs,
    day2,
    fleet_verbs,
    history_verbs,
    inventory_verbs,
    kubernetes_verbs,
    lab_verbs,
    node_verbs,
    quarantine_verbs,
    reset_verbs,
    rotate_verbs,
    run_verbs,
    status_verbs,
    storage_verbs,
    verify_verbs,
    workload_verbs,
)
from primus_bootstrap.cli.console import emit, emit_json, error_json, error_text, say
from primus_bootstrap.cli.printed_commands import completed_error, inventory_of
from primus_bootstrap.core.errors import PrimusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.models import CommandInfo, TyperInfo

# The panels of the help, in this order. Every verb must be in one.
_PANELS = {
    "Describe the cluster": ("init", "import", "validate", "schema", "secrets", "bundle"),
    "Install and check": ("doctor", "probe", "plan", "diff", "apply", "verify", "bench"),
    "Inspect": ("status", "report", "runs", "ssh", "exec"),
    "Maintain": ("node", "storage", "upgrade", "renew", "backup", "restore", "reset"),
    "Run training jobs": ("workload",),
    "Try it on this machine": ("lab",),
}


def _without_types(params: list[Any]) -> list[Any]:
    """Remove the type from the help of flags, which take no value."""
    for param in params:
        if getattr(param, "is_flag", False) or getattr(param, "count", False):
            param.metavar = ""
    return params


class _Group(TyperGroup):
    """A group of verbs."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group."""
        return _without_types(super().get_params(ctx))


class _PanelOrder(_Group):
    """Lists the verbs in the order of their panels."""

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002 - the signature of typer
        """Return the names of the verbs."""
        return [verb for verbs in _PANELS.values() for verb in verbs]


class _Verb(TyperCommand):
    """A verb. The commands in its errors name the program and hosts.yaml as the user did."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Join the lines of each paragraph of the help, which is as wide as the terminal."""
        super().__init__(*args, **options)
        self.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (self.help or "").split("\n\n"))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments of the verb."""
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except PrimusError as error:
            raise completed_error(error, inventory_of(ctx.params)) from error


app = typer.Typer(
    name="primus-bootstrap",
    cls=_PanelOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Turn bare-metal GPU servers and one hosts.yaml into a training cluster, and keep it healthy.",
    epilog="Exit codes: 0 success, 1 this machine is not ready (doctor, lab), 2 hosts.yaml or the command line is wrong (for example an "
    "unknown phase or host), 3 the request cannot be carried out, 4 at least one host failed, 5 another run holds the cluster's lock, "
    "6 the state of a job is unknown, 130 interrupted.",
)


def _version(value: bool) -> None:  # noqa: FBT001 - typer passes it by position
    if value:
        emit(f"primus-bootstrap {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    *,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more to stderr; -vv for debug messages.")] = 0,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,  # noqa: ARG001
) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", force=True)


inventory_verbs.register(app)
rotate_verbs.register(inventory_verbs.secrets_app)
run_verbs.register(app)
verify_verbs.register(app)
bench_verbs.register(app)
history_verbs.register(app)
status_verbs.register(app)
fleet_verbs.register(app)
reset_verbs.register(app)
kubernetes_verbs.register(app)
storage_verbs.register(app)
quarantine_verbs.register(day2.node_app)
node_verbs.register(day2.node_app)
app.add_typer(day2.node_app, name="node")
app.add_typer(workload_verbs.app, name="workload")
app.add_typer(bundle_verbs.app, name="bundle")
app.add_typer(lab_verbs.app, name="lab")


_PANEL_OF = {verb: panel for panel, verbs in _PANELS.items() for verb in verbs}
for _verb in app.registered_commands:
    _verb.rich_help_panel = _PANEL_OF[str(_verb.name)]
for _group in app.registered_groups:
    _group.rich_help_panel = _PANEL_OF[str(_group.name)]


def _groups(group: typer.Typer) -> Iterator[TyperInfo]:
    """Yield every group in a group."""
    for inner in group.registered_groups:
        yield inner
        if inner.typer_instance:
            yield from _groups(inner.typer_instance)


def _verbs(group: typer.Typer) -> Iterator[CommandInfo]:
    """Yield every verb of a group, also of the groups in it."""
    yield from group.registered_commands
    for inner in group.registered_groups:
        if inner.typer_instance:
            yield from _verbs(inner.typer_instance)


for _verb in _verbs(app):
    _verb.cls = _Verb
for _group in _groups(app):
    _group.cls = _Group


def main(argv: list[str] | None = None) -> None:
    """Run one verb and exit with its exit code.

    A PrimusError becomes a message with a fix. Any other exception is a bug and keeps its traceback.
    """
    arguments = sys.argv[1:] if argv is None else argv
    # Most verbs run for a second: collecting the objects of the imports would cost more than it frees.
    gc.freeze()
    try:
        app(args=arguments, prog_name="primus-bootstrap")
    except PrimusError as error:
        if "--json" in arguments:
            emit_json(error_json(error))
        else:
            say(error_text(error))
        sys.exit(error.exit_code)
