"""The verbs of `lab`: local test hosts in containers."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus_bootstrap.cli.console import count, emit, emit_json, emit_table, plain_table, program, say, short
from primus_bootstrap.cli.options import AsJson, examples
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
    from primus_bootstrap.lab.up import UpReport

app = typer.Typer(no_args_is_help=True, help="Local test hosts with real SSH, systemd and apt: containers on this machine.")
fault_app = typer.Typer(no_args_is_help=True, help="Break a host of the lab on purpose, and repair it.")
app.add_typer(fault_app, name="fault")

Name = Annotated[str, typer.Option("--name", help="Name of the lab; several can run at the same time.", metavar="NAME")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of hosts.yaml and of the lab's keys; inventory/NAME by default.", metavar="DIR"),
]
Host = Annotated[str, typer.Argument(help="A host of the lab, for example node2.")]


@app.command(epilog=examples("lab up", "lab up --nodes 5 --core --torch", "lab up --release bookworm,trixie"))
def up(
    *,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", help="Number of hosts; by default that of the existing lab or hosts.yaml, else 3.", metavar="N"),
    ] = None,
    spare: Annotated[
        int | None,
        typer.Option("--spare", help="Number of additional hosts that are not in hosts.yaml; unchanged by default.", metavar="N"),
    ] = None,
    release: Annotated[
        str | None,
        typer.Option("--release", help="Releases of the hosts, in turn: bookworm,trixie; or all. One release by default.", metavar="NAMES"),
    ] = None,
    core: Annotated[
        bool, typer.Option("--core", help="Write a hosts.yaml with only Slurm, storage and jobs, which installs faster.")
    ] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Write a hosts.yaml with only the group gpu_node and no settings.")] = False,
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", help="Mount a folder of this machine read-only in every host; repeat for more.", metavar="FOLDER:/PATH"),
    ] = None,
    torch: Annotated[
        bool,
        typer.Option("--torch", help="Install torch on this machine for the hosts, which training jobs need; only when hosts are created."),
    ] = False,
    name: Name = DEFAULT_NAME,
    folder: Folder = None,
) -> None:
    """Start the local hosts and write their hosts.yaml. Does nothing if they are running."""
    releases = tuple(release.replace(",", " ").split()) if release else None
    if core and bare:
        raise typer.BadParameter("use either --core or --bare, not both")
    form: Form | None = "core" if core else "bare" if bare else None
    request = Request(nodes=nodes, spares=spare, releases=releases, form=form, mounts=tuple(mount) if mount else None, torch=torch)
    report = lab_up(name, _folder(name, folder), request, progress=say, lock_cluster=_hold)
    hosts_file = short(report.lab.hosts_file)
    hosts = count(len(report.lab.nodes), "host")
    for node, print_ in report.fingerprints:
        say(f"{node}: host key {print_}")
    if report.changes:
        emit(f"the lab {name!r} is up: {hosts}. Next: {program()} {_next_verb(report, hosts_file)}")
    else:
        emit(f"the lab {name!r} is already up: {hosts}, nothing changed. Inventory: {hosts_file}")


def _next_verb(report: UpReport, hosts_file: str) -> str:
    """Return `node add` with the first new host if all new hosts are spares, else `apply`."""
    created = {name for name, _ in report.fingerprints}
    new = [node for node in report.lab.nodes if node.name in created]
    if not new or created & {node.name for node in report.lab.listed}:
        return f"apply {hosts_file}"
    return f"node add {hosts_file} {new[0].name} --host {new[0].address} --like {report.lab.listed[-1].name}"


@app.command()
def down(
    *,
    name: Name = DEFAULT_NAME,
    folder: Folder = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also delete the lab's keys, pinned host keys and runs (.primus/NAME).")] = False,
) -> None:
    """Remove the local hosts and their network. hosts.yaml stays, and without --purge the keys as well."""
    existed = lab_down(name, _folder(name, folder), purge=purge, progress=say)
    emit(f"the lab {name!r} is down" if existed else f"there is no lab {name!r}; nothing changed")


@app.command()
def status(
    *,
    name: Name = DEFAULT_NAME,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of each host, queried over SSH."""
    lab = lab_status(name, _folder(name, folder))
    if as_json:
        emit_json(asdict(lab))
    else:
        _show(lab)


def _fault(kind: str, what: str) -> None:
    def command(host: Host, *, name: Name = DEFAULT_NAME, folder: Folder = None) -> None:
        emit(faults.apply_fault(kind, name, _folder(name, folder), node=host))

    command.__doc__ = what
    fault_app.command(kind)(command)


_fault("kill", "Kill all processes of a host at once, like a power failure.")
_fault("start", "Start a killed host and wait until it answers.")
_fault("pause", "Freeze a host: connections stay open, but nothing answers.")
_fault("partition", "Disconnect a host from its network: packets are lost.")
_fault("slow", "Limit a host to half a CPU: it answers, but computes slowly.")
_fault("heal", "Undo all faults of a host and wait until it answers.")


def _hold(state_dir: Path) -> AbstractContextManager[HeldLock]:
    """Hold the lock of the lab's cluster while its hosts.yaml is written."""
    return cluster_lock(state_dir, verb="lab up", run=new_run_id(time.time()))


def _folder(name: str, folder: Path | None) -> Path:
    return folder if folder is not None else default_folder(name)


def _show(lab: LabStatus) -> None:
    table = plain_table("host", "state", "distribution", "address", "ssh", "systemd", "")
    for node in lab.nodes:
        note = node.reason or ("spare: not in hosts.yaml" if node.spare else "")
        table.add_row(node.name, node.state, node.distribution, node.address, "yes" if node.ssh else "no", node.systemd, note)
    emit_table(table)
    for image in lab.images:
        emit(f"image {image.suite}: {'built' if image.cached else 'not built'}, {'imported' if image.imported else 'not imported'}")
    emit(f"lab {lab.name!r} in {lab.directory}, {lab.subnet}, {lab.engine}: {'up' if lab.up else 'not up'}")
