#!/usr/bin/python
"""Take a node out of Slurm's service, or put it back: the Ansible module `slurm_node_state`.

It asks the controllers and never the node, which may be dead. A node that Slurm does not know is drained already.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_ask import CALL_S, OWN, call, look_at_node, serves_already

if TYPE_CHECKING:
    from collections.abc import Callable

    from ansible.module_utils.slurm_ask import Caller, SeenNode

POLL_S = 2.0
# How long jobs that were told to go may take: KillWait, and the time in which a dead node's are given up.
FORCED_S = 90.0
ON_NODE = "--states=RUNNING,COMPLETING,CONFIGURING,SUSPENDED,STOPPED,STAGE_OUT"


class RefusedError(Exception):
    """Something was refused or did not end; the text says what, and how to mend it."""


class Service:
    """One node's service, as the controllers keep it."""

    def __init__(self, name: str, *, check: bool = False, caller: Caller = call, wait: Callable[[float], None] = time.sleep) -> None:
        """Keep which node, how to ask, and whether nothing may be changed."""
        self.name = name
        self.check = check
        self.caller = caller
        self.wait = wait
        self.changed = False

    def update(self, *words: str) -> None:
        """Let the controllers set the node's state."""
        self.changed = True
        if self.check:
            return
        answer = self.caller(["scontrol", "update", f"NodeName={self.name}", *words], CALL_S)
        if answer.status != 0:
            raise RefusedError(f"Slurm refuses {' '.join(words)} for {self.name}: {answer.text[:200]}. Fix: run it as root on a controller")

    def jobs(self) -> list[str]:
        """Return the jobs that the node has, as `number (person)`."""
        answer = self.caller(["squeue", "--noheader", f"--nodelist={self.name}", ON_NODE, "--format=%A (%u)"], CALL_S)
        if answer.status != 0:
            raise RefusedError(f"which jobs {self.name} has cannot be told: {answer.text[:200]}. Fix: see `scontrol ping`")
        found: list[str] = answer.text.splitlines()
        return found

    def wait_for_jobs(self, limit_s: float) -> list[str]:
        """Wait until the node has no job; return those that are left."""
        deadline = time.monotonic() + limit_s
        while (left := self.jobs()) and not self.check and time.monotonic() < deadline:
            self.wait(POLL_S)
        return left

    def drain(self, node: SeenNode, reason: str, *, wait_s: float, force: bool) -> None:
        """Let no further job start, and wait until the node has none; with `force`, let the rest be queued again."""
        # A drain by the health check is lifted by it as soon as the node is well again: it must not be while the node leaves.
        if not node.drained or node.reason.startswith(f"{OWN} health:"):
            self.update("State=DRAIN", f"Reason={reason}")
        left = self.wait_for_jobs(wait_s)
        if left and force:
            # Down, and not `scontrol requeue`: it also ends jobs that cannot be queued again, and needs no word from the node.
            self.update("State=DOWN", f"Reason={reason}")
            left = self.wait_for_jobs(FORCED_S)
        if left and not self.check:
            what = f"{self.name} is drained and still has {len(left)} jobs after {wait_s:.0f} s: {', '.join(left[:5])}"
            raise RefusedError(f"{what}. Fix: wait longer (slurm_drain_wait_s), or have them queued again (slurm_drain_force)")

    def resume(self, node: SeenNode, reason: str) -> str:
        """Lift a drain whose reason begins so; return why it stays where it does."""
        if not (node.drained or "DOWN" in node.states):
            return ""
        if not node.reason.startswith(reason):
            return f"{self.name} is {node.state} because of `{node.reason}`, which is not to be lifted here"
        try:
            self.update("State=RESUME")
        except RefusedError:
            if not serves_already(self.name, self.caller):
                raise
        return ""


def bring_about(service: Service, wanted: dict[str, Any]) -> str:
    """Bring the node to the wanted service; return what there is to say."""
    node = look_at_node(service.name, service.caller)
    if node is None:
        return f"Slurm knows no {service.name}"
    if wanted["state"] == "resumed":
        return service.resume(node, wanted.get("reason") or OWN)
    service.drain(node, wanted["reason"], wait_s=wanted["wait_s"], force=wanted["force"])
    return ""


def main() -> None:
    """Read the arguments, ask, change, wait and report."""
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
        said = bring_about(service, module.params)
    except ConnectionError as error:
        module.fail_json(
            msg=f"no controller answers: {error}. Fix: `systemctl status slurmctld munge` on the controllers", changed=service.changed
        )
    except RefusedError as error:
        module.fail_json(msg=str(error), changed=service.changed)
    module.exit_json(changed=service.changed, msg=said)


if __name__ == "__main__":
    main()
