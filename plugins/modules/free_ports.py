#!/usr/bin/python
"""Ansible module `free_ports`: fail if another program listens on a TCP port that a unit of this role needs. It changes nothing.

It also fails if the address on which the unit will listen belongs to another host.

community.general.listen_ports_facts lists listeners, but does not tell those of the role's own units from others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.own_addresses import foreign_problem, listen_fix

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    Runner = Callable[[Sequence[str]], "tuple[int, str, str]"]


def listeners(run: Runner, port: int, own: Collection[str]) -> list[str]:
    """Return the programs that listen on a port as `name (pid)`, without the processes in `own`."""
    _, output, _ = run(["ss", "-Hltnp", f"sport = :{port}"])
    found = set(re.findall(r'\("([^"]*)",pid=(\d+)', output))
    return [f"{name} ({pid})" for name, pid in sorted(found) if pid not in own]


def main_processes(run: Runner, units: Iterable[str]) -> set[str]:
    """Return the pids of the main processes of units."""
    return {run(["systemctl", "show", "--property", "MainPID", "--value", unit])[1].strip() for unit in units}


def main() -> None:
    """Report every port that is in use."""
    module = AnsibleModule(
        {
            "host": {"type": "str", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "units": {"type": "list", "elements": "str", "required": True},
            "fix": {"type": "str", "required": True},  # what to set instead, such as `another prometheus_port`
            "address": {"type": "str", "default": ""},  # on which the unit will listen; empty = all
            "address_variable": {"type": "str", "default": ""},  # the variable of hosts.yaml that sets another one
        },
        supports_check_mode=True,
    )
    run, params = module.run_command, module.params
    if problem := foreign_problem(params["address"], params["host"]):
        module.fail_json(msg=f"{problem} Fix: {listen_fix(params['host'], params['address_variable'])}.")
    own = main_processes(run, params["units"])
    used = {port: found for port in params["ports"] if (found := listeners(run, port, own))}
    if used:
        lines = [f"Port {port} on {params['host']} is in use by {', '.join(found)}." for port, found in used.items()]
        port = next(iter(used))
        module.fail_json(msg=f"{' '.join(lines)} Fix: stop that program (`ss -ltnp 'sport = :{port}'` shows it), or set {params['fix']}.")
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
