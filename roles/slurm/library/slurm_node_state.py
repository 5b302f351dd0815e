#!/usr/bin/python
"""Ansible module `slurm_node_state`: drain or resume a node of Slurm. No collection has a module for it.

It uses only the controllers: the node may be dead. A node that Slurm does not know counts as drained.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_commands import REASON_PREFIX, RefusedError, call, get_node, is_in_service, jobs_on, update_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.module_utils.slurm_commands import Caller, NodeState

POLL_S = 2.0
# Time for requeued jobs to leave the node: KillWait, plus the time after which jobs of a dead node are given up.
FORCED_S = 90.0


class Service:
    """The state of one node at the controllers."""

    def __init__(self, name: str, *, check: bool = False, caller: Caller = call, wait: Callable[[float], None] = time.sleep) -> None:
        """Store the node, the check mode, and how to run commands and wait."""
        self.name = name
        self.check = check
        self.caller = caller
        self.wait = wait
        self.changed = False

    def update(self, *arguments: str) -> None:
        """Update the node, except in check mode."""
        self.changed = True
        if not self.check:
            update_node(self.name, arguments, self.caller)

    def wait_for_jobs(self, limit_s: float) -> list[str]:
        """Wait until the node has no jobs; return the remaining ones."""
        deadline = time.monotonic() + limit_s
        left: list[str]
        while (left := jobs_on(self.name, self.caller)) and not self.check and time.monotonic() < deadline:
            self.wait(POLL_S)
        return left

    def drain(self, node: NodeState, reason: str, *, wait_s: float, force: bool) -> None:
        """Drain the node and wait for its jobs; with `force`, requeue those that remain."""
        # Replace a drain by the health check: it would resume the node as soon as it is healthy.
        if not node.drained or node.reason.startswith(f"{REASON_PREFIX} health:"):
            self.update("State=DRAIN", f"Reason={reason}")
        left = self.wait_for_jobs(wait_s)
        if left and force:
            # State=DOWN instead of `scontrol requeue`: it also ends jobs that cannot be requeued, and does not need the node.
            self.update("State=DOWN", f"Reason={reason}")
            left = self.wait_for_jobs(FORCED_S)
        if left and not self.check:
            what = f"{self.name} is drained and still has {len(left)} jobs after {wait_s:.0f} s: {', '.join(left[:5])}"
            raise RefusedError(f"{what}. Fix: raise slurm_drain_wait_s, or requeue the jobs with slurm_drain_force=true")

    def resume(self, node: NodeState, reason: str) -> str:
        """Resume the node if the reason of its drain begins with `reason`; else return why it stays drained."""
        if not (node.drained or "DOWN" in node.states):
            return ""
        if not node.reason.startswith(reason):
            return f"{self.name} stays {node.state}: its reason is `{node.reason}`"
        try:
            self.update("State=RESUME")
        except RefusedError:
            if not is_in_service(self.name, self.caller):
                raise
        return ""


def apply(service: Service, options: dict[str, Any]) -> str:
    """Drain or resume the node; return a message, empty if there is none."""
    node = get_node(service.name, service.caller)
    if node is None:
        return f"Slurm does not know {service.name}"
    if options["state"] == "resumed":
        return service.resume(node, options.get("reason") or REASON_PREFIX)
    service.drain(node, options["reason"], wait_s=options["wait_s"], force=options["force"])
    return ""


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "state": {"type": "str", "required": True, "choices": ["drained", "resumed"]},
            "reason": {"type": "str", "default": ""},
            "wait_s": {"type": "float", "default": 0.0},
            "force": {"type": "bool", "default": False},
        },
        required_if=[("state", "drained", ["reason"])],
        supports_check_mode=True,
    )
    service = Service(module.params["node"], check=module.check_mode)
    try:
        message = apply(service, module.params)
    except ConnectionError as error:
        module.fail_json(
            msg=f"no controller answers: {error}. Fix: run `systemctl status slurmctld munge` on the controllers", changed=service.changed
        )
    except RefusedError as error:
        module.fail_json(msg=str(error), changed=service.changed)
    module.exit_json(changed=service.changed, msg=message)


if __name__ == "__main__":
    main()
