"""`primus-bootstrap lab`: local hosts to try things on."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import emit, emit_json, emit_table, plain_table, program, say, short
from primus_bootstrap.cli.live import count
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.state_folder import new_run_id
from primus_bootstrap.lab import faults
from primus_bootstrap.lab.lab_values import DEFAULT_NAME, default_folder
from primus_bootstrap.lab.request import Request
from primus_bootstrap.lab.status import status as lab_status
from primus_bootstrap.lab.up import down as lab_down
from primus_bootstrap.lab.up import up as lab_up

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from primus_bootstrap.engine.lock import HeldLock
    from primus_bootstrap.lab.lab_values import Form
    from primus_bootstrap.lab.status import LabStatus

app = typer.Typer(no_args_is_help=True, help="Local hosts with real SSH, systemd and apt: containers on this machine.")
fault_app = typer.Typer(no_args_is_help=True, help="Break a host of the lab on purpose, and mend it.")
app.add_typer(fault_app, name="fault")

Name = Annotated[str, typer.Option("--name", help="Which lab; several can run side by side.")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of hosts.yaml and of the lab's keys; inventory/NAME under the current folder by default."),
]
Host = Annotated[str, typer.Argument(help="A host of the lab, for example node2.")]


@app.command()
def up(
    *,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", help="How many hosts; as many as before, or as hosts.yaml names, by default; 3 where there is none."),
    ] = None,
    spare: Annotated[
        int | None, typer.Option("--spare", help="How many more hosts to have up that hosts.yaml does not name; as before by default.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option("--release", help="The hosts' releases in turn, by code name: bookworm,trixie; or all. One release by default."),
    ] = None,
    core: Annotated[bool, typer.Option("--core", help="Write a hosts.yaml of Slurm, storage and jobs alone, which is up sooner.")] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Write a hosts.yaml with no group but gpu_node, and no settings.")] = False,
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", help="A folder of this machine that every host sees and cannot write.", metavar="FOLDER:/PATH"),
    ] = None,
    name: Name = DEFAULT_NAME,
    folder: Folder = None,
) -> None:
    """Bring the local hosts up and write their hosts.yaml; does nothing where they are up."""
    releases = tuple(release.replace(",", " ").split()) if release else None
    if core and bare:
        raise typer.BadParameter("--core and --bare contradict each other; give one of them")
    form: Form | None = "core" if core else "bare" if bare else None
    request = Request(nodes=nodes, spares=spare, releases=releases, form=form, mounts=tuple(mount) if mount else None)
    report = lab_up(name, _folder(name, folder), request, progress=say, lock_cluster=_hold)
    hosts_file = short(report.lab.hosts_file)
    hosts = count(len(report.lab.nodes), "host")
    for node, print_ in report.fingerprints:
        say(f"{node}: host key {print_}")
    if report.changes:
        emit(f"the lab {name!r} is up: {hosts}. Next: {program()} apply {hosts_file}")
    else:
        emit(f"the lab {name!r} is up already: {hosts}, nothing changed. Inventory: {hosts_file}")


@app.command()
def down(
    *,
    name: Name = DEFAULT_NAME,
    folder: Folder = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove the lab's keys, pins and runs (.primus/NAME).")] = False,
) -> None:
    """Remove the local hosts and their network; hosts.yaml and, without --purge, their keys stay."""
    found = lab_down(name, folder, purge=purge, progress=say)
    emit(f"the lab {name!r} is down" if found else f"there is no lab {name!r}; nothing changed")


@app.command()
def status(
    *,
    name: Name = DEFAULT_NAME,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show how each host is, asked over SSH."""
    found = lab_status(name, _folder(name, folder))
    if as_json:
        emit_json(asdict(found))
    else:
        _show(found)


def _fault(kind: str, what: str) -> None:
    def command(host: Host, *, name: Name = DEFAULT_NAME, folder: Folder = None) -> None:
        emit(faults.apply_fault(kind, name, _folder(name, folder), node=host))

    command.__doc__ = what
    fault_app.command(kind)(command)


_fault("kill", "Kill every process of a host at once, as a power cut would.")
_fault("start", "Start a killed host and wait until it answers.")
_fault("pause", "Freeze a host: connections stay open and nothing answers.")
_fault("partition", "Take a host off its network: packets are lost.")
_fault("slow", "Leave a host half a processor: it answers, and computes slowly.")
_fault("heal", "Undo every fault of a host and wait until it answers.")


def _hold(state_dir: Path) -> AbstractContextManager[HeldLock]:
    """Hold the lock of the lab's cluster while its hosts.yaml is written anew."""
    return cluster_lock(state_dir, verb="lab up", run=new_run_id(time.time()))


def _folder(name: str, folder: Path | None) -> Path:
    return folder if folder is not None else default_folder(name)


def _show(found: LabStatus) -> None:
    table = plain_table("host", "state", "distribution", "address", "ssh", "systemd", "")
    for node in found.nodes:
        said = node.reason or ("spare: hosts.yaml does not name it" if node.spare else "")
        table.add_row(node.name, node.state, node.distribution, node.address, "yes" if node.ssh else "no", node.systemd, said)
    emit_table(table)
    for image in found.images:
        emit(f"image {image.suite}: {'built' if image.cached else 'not built'}, {'imported' if image.imported else 'not imported'}")
    emit(f"lab {found.name!r} in {found.directory}, {found.subnet}, {found.engine}: {'up' if found.up else 'not up'}")
