"""Check, before a job is queued, that its hosts have torch."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from primus_bootstrap.cli.fleet_verbs import as_root, ask_hosts, targets_of_limit
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.ssh import known_hosts_path
from primus_bootstrap.fleet.messages import Task
from primus_bootstrap.lab.lab_values import lab_command, lab_exists
from primus_bootstrap.lab.torch_folder import TARGET
from primus_bootstrap.launch.watch.job_spec import KUBERNETES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.inventory.cluster import Cluster
    from primus_bootstrap.launch.watch.job_request import JobRequest

# The launcher on each node checks its own host. A few hosts show whether an environment was prepared at all.
_HOSTS = 8
_NO_TORCH, _NO_PROGRAM = 9, 127  # 127: POSIX, command not found
_LOOK = f"""\
from importlib.metadata import PackageNotFoundError, version
try:
    version("torch")
except PackageNotFoundError:
    raise SystemExit({_NO_TORCH})
"""
# Options of primus-cli and variables with which another Python, or other packages, are used.
_OTHER_PYTHON = ("--python", "--venv", "--single", "PYTHONPATH")


def check_torch(  # noqa: PLR0913 (all needed)
    cluster: Cluster, request: JobRequest, target: str, hosts: Sequence[str], *, become_password: str, timeout_s: float
) -> None:
    """Ask the first hosts of a job for torch in the job's Python. A host that does not answer, or has another problem, is unknown.

    Raises:
        PlanError: A host has no torch.
    """
    words = [*request.cli_options, *request.environment]
    if target == KUBERNETES or not hosts or any(str(word).partition("=")[0] in _OTHER_PYTHON for word in words):
        return
    python = _python(cluster, request, hosts[0])
    asked = list(hosts[:_HOSTS])
    stdin = dict.fromkeys(asked, f"{become_password}\n") if become_password else {}
    command = as_root(f"{shlex.quote(python)} -c {shlex.quote(_LOOK)}")
    targets = targets_of_limit(cluster, ",".join(asked), become_password)
    answers = ask_hosts(cluster, targets, Task(command, stdin, timeout_s, str(known_hosts_path(cluster))))
    absent = [answer.host for answer in answers if answer.answered and answer.exit_code == _NO_PROGRAM]
    without = [answer.host for answer in answers if answer.answered and answer.exit_code == _NO_TORCH]
    if absent or without:
        what = f"{python} does not exist on {', '.join(absent)}" if absent else f"{python} has no torch on {', '.join(without)}"
        raise PlanError(f"the job cannot start: {what}", fix=_fix(cluster, python))


def _python(cluster: Cluster, request: JobRequest, host: str) -> str:
    """Return the Python with which primus-cli starts the ranks."""
    settings = cluster.view.variables(host).get("primus_cli_settings")
    direct = settings.get("direct") if isinstance(settings, dict) else None
    of_site = direct.get("venv") if isinstance(direct, dict) else None
    venv = request.venv or (of_site if isinstance(of_site, str) else "")
    return f"{venv}/bin/python" if venv else "python3"


def _fix(cluster: Cluster, python: str) -> str:
    folder = cluster.path.parent
    if python in ("python3", f"{TARGET}/bin/python") and lab_exists(folder, cluster.name):
        down, up = (lab_command(verb, cluster.name, folder) for verb in ("down", "up --torch"))
        return f"create the lab's hosts again, with torch: {down}; {up}; primus-bootstrap apply hosts.yaml"
    return f"install torch and numpy for {python} on every host of the job, or set workload_venv to a virtual environment that has them"
