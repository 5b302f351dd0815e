"""The entry point: mounts the verbs, and is the one place that turns an error into a message and an exit code."""

from __future__ import annotations

import gc
import logging
import sys
from typing import Annotated

import typer

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
    verify_verbs,
    workload_verbs,
)
from primus_bootstrap.cli.console import emit, emit_json, error_json, error_text, say
from primus_bootstrap.core.errors import PrimusError

app = typer.Typer(
    name="primus-bootstrap",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Bare-metal GPU servers and one hosts.yaml in, a training cluster that stays healthy out.",
    epilog="Exit codes: 0 done, 2 hosts.yaml wrong, 3 cannot be planned, 4 a host did not get there, 5 another run holds the lock, "
    "6 nobody answers for a job that is followed, 130 interrupted.",
)

# How the help groups the verbs, in this order; a verb that stands nowhere here is an error at the start.
_PANELS = {
    "Describe a cluster": ("init", "import", "validate", "schema", "secrets", "bundle"),
    "Bring it up": ("doctor", "probe", "plan", "diff", "apply", "verify", "bench"),
    "Look at it": ("status", "report", "runs", "ssh", "exec"),
    "Look after it": ("node", "upgrade", "renew", "backup", "restore", "reset"),
    "Use it": ("workload",),
    "Try it on this machine": ("lab",),
}


def _version(value: bool) -> None:  # noqa: FBT001 (typer calls it so)
    if value:
        emit(f"primus-bootstrap {__version__}")
        raise typer.Exit


@app.callback()
def _globals(
    *,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more on stderr; -vv says more still.")] = 0,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")] = False,  # noqa: ARG001
) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s", force=True)


inventory_verbs.register(app)
rotate_verbs.register(inventory_verbs.secrets_app)
run_verbs.register(app)
verify_verbs.register(app)
bench_verbs.register(app)
history_verbs.register(app)
fleet_verbs.register(app)
reset_verbs.register(app)
kubernetes_verbs.register(app)
node_verbs.register(day2.node_app)
quarantine_verbs.register(day2.node_app)
app.add_typer(day2.node_app, name="node")
app.add_typer(workload_verbs.app, name="workload")
app.add_typer(bundle_verbs.app, name="bundle")
app.add_typer(lab_verbs.app, name="lab")


def _arrange() -> None:
    """Put the verbs into their panels."""
    panels = {verb: panel for panel, verbs in _PANELS.items() for verb in verbs}
    order = list(panels)
    for verb in app.registered_commands:
        verb.rich_help_panel = panels[str(verb.name)]
    for family in app.registered_groups:
        family.rich_help_panel = panels[str(family.name)]
    app.registered_commands.sort(key=lambda verb: order.index(str(verb.name)))
    app.registered_groups.sort(key=lambda family: order.index(str(family.name)))


_arrange()


def main(argv: list[str] | None = None) -> None:
    """Run one verb and exit with its code.

    An error of the user's is a message with a fix; an unexpected exception keeps its traceback, since it is our bug.
    """
    arguments = sys.argv[1:] if argv is None else argv
    # Most verbs live for a second: a collection of what the imports left costs more than it frees.
    gc.freeze()
    try:
        app(args=arguments, prog_name="primus-bootstrap")
    except PrimusError as error:
        if "--json" in arguments:
            emit_json(error_json(error))
        else:
            say(error_text(error))
        sys.exit(error.exit_code)
