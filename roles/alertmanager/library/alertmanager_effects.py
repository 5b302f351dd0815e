#!/usr/bin/python
"""Check Alertmanager's access control, receivers, peers and the routing of a test alert: the Ansible module `alertmanager_effects`.

The test alert reaches no receiver. With `send`, the first receiver gets a message, and the module waits until it has accepted it.
It is a module of its own because it reports verdicts and waits for several states, which ansible.builtin.uri cannot.
"""

from __future__ import annotations

import datetime as dt
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.web_service import ARGUMENTS, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# filter_plugins/alertmanager.py routes by these names.
TEST_ALERT, NOBODY = "PrimusVerification", "nobody"
OK = 200
ROUTED_S, SENT_S, PEERS_S = 15.0, 60.0, 60.0
NO_ANSWER = "Alertmanager did not answer"


class Alertmanager:
    """Checks of one server."""

    def __init__(self, service: Service, path: str, unit: str, sleep: Callable[[float], None]) -> None:
        """Store how to call the server, and create a random label that identifies the test alert."""
        self.service, self.path, self.verdicts, self.sleep = service, path, service.verdicts, sleep
        self.fix = f"read `journalctl -u {unit} -n 30`"
        self.label = uuid.uuid4().hex[:12]

    def read(self, resource: str) -> Any:
        """Return the content of an API resource, or None if there is no answer."""
        return self.service.read(f"{self.path}/api/v2/{resource}")

    def post_alert(self, *, deliver: bool, ends_in_s: float) -> str:
        """Raise the test alert, or resolve it if `ends_in_s` is negative; return the error, or an empty string."""
        end = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=ends_in_s)  # noqa: UP017 (Python 3.9 runs it on RHEL)
        labels = {"alertname": TEST_ALERT, "severity": "none", "verification": self.label, "deliver": "yes" if deliver else "no"}
        annotations = {"summary": f"test alert of the verification of {self.service.params['host']}", "fix": "nothing to do"}
        alert = {"labels": labels, "annotations": annotations, "endsAt": end.isoformat()}
        status, text = self.service.call("POST", f"{self.path}/api/v2/alerts", [alert])
        return "" if status == OK else f"status {status}: {text[:200]}"

    def wait_for_alert(self, *, active: bool) -> Any:
        """Wait until the test alert is active, or resolved, and return the last answer (None if there was none)."""
        deadline = time.monotonic() + ROUTED_S
        while True:
            found = self.read(f"alerts?filter=verification%3D{self.label}&active=true&silenced=true&inhibited=true")
            if (found is not None and bool(found) is active) or time.monotonic() > deadline:
                return found
            self.sleep(0.5)

    def check_routing(self, receivers: Sequence[str], *, send: bool) -> None:
        """Check that a test alert is accepted, reaches the expected receiver, and resolves."""
        expected = receivers[0] if send and receivers else NOBODY
        before = self.sent()
        error = self.post_alert(deliver=send, ends_in_s=300)
        found = None if error else self.wait_for_alert(active=True)
        routed = [one["name"] for one in found[0]["receivers"]] if found else []
        verdict = "unknown" if not error and found is None else "pass" if routed == [expected] else "fail"
        self.verdicts.add("alert_is_routed", verdict, expected=expected, found=", ".join(routed) or error, reason=error, fix=self.fix)
        if send and receivers:
            self._check_delivery(receivers[0], before)
        error = self.post_alert(deliver=send, ends_in_s=-1)
        left = None if error else self.wait_for_alert(active=False)
        verdict = "unknown" if not error and left is None else "fail" if error or left else "pass"
        state = "still active" if left else error or "resolved"
        self.verdicts.add("alert_resolves", verdict, expected="resolved", found=state, reason=error, fix=self.fix)

    def sent(self) -> tuple[float, float] | None:
        """Return the numbers of accepted messages and failed attempts since the start, or None if there is no answer.

        Counts finished requests. `notifications_total` would also count a pending one, which would look like success.
        """
        status, text = self.service.call("GET", f"{self.path}/metrics")
        if status != OK:
            return None
        ended, failed = (
            sum(float(value) for value in re.findall(rf"(?m)^alertmanager_notification_requests_{name}\{{[^}}]*\}} (\S+)$", text))
            for name in ("total", "failed_total")
        )
        return ended - failed, failed

    def _check_delivery(self, receiver: str, before: tuple[float, float] | None) -> None:
        """Check that the receiver has accepted the message."""
        deadline = time.monotonic() + SENT_S
        now = before
        while before is not None and time.monotonic() < deadline:
            now = self.sent()
            if now is None or now[1] > before[1] or now[0] > before[0]:
                break
            self.sleep(1.0)
        fields = {"expected": "accepted", "device": receiver}
        if before is None or now is None:
            self.verdicts.add("message_is_delivered", "unknown", **fields, found="", reason=NO_ANSWER, fix=self.fix)
        elif now[1] > before[1] or now[0] <= before[0]:
            found = "refused" if now[1] > before[1] else "not sent"
            fix = f"{self.fix}, which shows the error, and correct alertmanager_receivers"
            self.verdicts.add("message_is_delivered", "fail", **fields, found=found, fix=fix)
        else:
            self.verdicts.add("message_is_delivered", "pass", **fields, found="accepted")

    def check_receivers(self, receivers: Sequence[str]) -> None:
        """Check that Alertmanager uses the configured receivers; skipped if there is none."""
        if not receivers:
            reason = "no receiver is configured: alerts are not sent"
            self.verdicts.skip("receivers", reason, fix="set alertmanager_receivers")
            return
        answer = self.read("receivers")
        names = {one["name"] for one in answer or ()} - {NOBODY}
        verdict = "unknown" if answer is None else "pass" if names == {*receivers} else "fail"
        fix = f"apply the phase monitoring again; {self.fix}"
        self.verdicts.add("receivers", verdict, expected=", ".join(sorted(receivers)), found=", ".join(sorted(names)), fix=fix)

    def check_peers(self, expected: int) -> None:
        """Check that Alertmanager is connected with the other hosts of the group. Waits, because this takes seconds after a start."""
        if not expected:
            self.verdicts.skip("peers", "the group alertmanager has one host")
            return
        deadline = time.monotonic() + PEERS_S
        while True:
            cluster = (self.read("status") or {}).get("cluster")
            found = len((cluster or {}).get("peers") or ()) - 1  # without itself
            if cluster is None or found == expected or time.monotonic() > deadline:
                break
            self.sleep(1.0)
        verdict = "unknown" if cluster is None else "pass" if found == expected else "fail"
        fix = f"open alertmanager_cluster_port for TCP between the hosts of the group; {self.fix}"
        self.verdicts.add("peers", verdict, expected=str(expected), found="" if cluster is None else str(found), fix=fix)


def main() -> None:
    """Read the arguments, run the checks and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "path": {"type": "str", "required": True},
            "receivers": {"type": "list", "elements": "str", "required": True},
            "peers": {"type": "int", "required": True},
            "send": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    service = Service(params, "alertmanager")
    alertmanager = Alertmanager(service, params["path"], params["unit"], time.sleep)
    if service.check_access(f"{params['path']}/metrics", params["unit"]):
        alertmanager.check_receivers(params["receivers"])
        alertmanager.check_routing(params["receivers"], send=params["send"])
        alertmanager.check_peers(params["peers"])
    service.verdicts.finish(module)


if __name__ == "__main__":
    main()
