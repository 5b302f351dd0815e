#!/usr/bin/python
"""Raise a test alert in Alertmanager, see where it is routed, and end it: the Ansible module `alertmanager_effects`.

Nobody is told of it, unless `send` asks for a message to the first receiver; then it is waited for until the receiver has taken it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.web_service import ARGUMENTS, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Both are the names that filter_plugins/alertmanager.py routes by.
TEST_ALERT, NOBODY = "PrimusVerification", "nobody"
OK = 200
ROUTED_S, SENT_S, PEERS_S = 15.0, 60.0, 60.0


class Alertmanager:
    """Verdicts on one server."""

    def __init__(self, service: Service, path: str, unit: str, sleep: Callable[[float], None]) -> None:
        """Keep how to ask, and a mark by which this verification knows its own alert."""
        self.service, self.path, self.judge, self.sleep = service, path, service.judge, sleep
        self.fix = f"see `journalctl -u {unit} -n 30`"
        self.mark = uuid.uuid4().hex[:12]

    def answer(self, what: str) -> Any:
        """Return what the API says, None where it says nothing."""
        status, text = self.service.call("GET", f"{self.path}/api/v2/{what}")
        try:
            return json.loads(text) if status == OK else None
        except ValueError:
            return None

    def tell(self, *, deliver: bool, ends_in_s: float) -> str:
        """Raise or end the test alert; return what was wrong, nothing where it was taken."""
        end = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=ends_in_s)  # noqa: UP017 (Python 3.9 runs it on RHEL)
        labels = {"alertname": TEST_ALERT, "severity": "none", "verification": self.mark, "deliver": "yes" if deliver else "no"}
        notes = {
            "summary": f"a test of the way of alerts, by the verification of {self.service.wanted['host']}",
            "fix": "nothing is to be done",
        }
        alert = {"labels": labels, "annotations": notes, "endsAt": end.isoformat()}
        status, text = self.service.call("POST", f"{self.path}/api/v2/alerts", [alert])
        return "" if status == OK else f"status {status}: {text[:200]}"

    def await_alert(self, *, there: bool) -> Any:
        """Return the test alert once it is there or gone, as asked; what was found last when the time is over (None: no answer)."""
        deadline = time.monotonic() + ROUTED_S
        while True:
            found = self.answer(f"alerts?filter=verification%3D{self.mark}&active=true&silenced=true&inhibited=true")
            if (found is not None and bool(found) is there) or time.monotonic() > deadline:
                return found
            self.sleep(0.5)

    def look_at_way(self, receivers: Sequence[str], *, send: bool) -> None:
        """See that an alert comes in, is routed to whom it should be, and ends."""
        expected = receivers[0] if send and receivers else NOBODY
        before = self.sent()
        wrong = self.tell(deliver=send, ends_in_s=300)
        found = None if wrong else self.await_alert(there=True)
        routed = [one["name"] for one in found[0]["receivers"]] if found else []
        verdict = "unknown" if not wrong and found is None else "pass" if routed == [expected] else "fail"
        self.judge("alert_is_routed", verdict, expected=expected, found=", ".join(routed) or wrong, reason=wrong, fix=self.fix)
        if send and receivers:
            self._look_at_delivery(receivers[0], before)
        wrong = self.tell(deliver=send, ends_in_s=-1)
        left = None if wrong else self.await_alert(there=False)
        verdict = "unknown" if not wrong and left is None else "fail" if wrong or left else "pass"
        self.judge("alert_ends", verdict, expected="gone", found="still there" if left else wrong or "gone", reason=wrong, fix=self.fix)

    def sent(self) -> tuple[float, float] | None:
        """Return how many messages were taken and how many attempts failed since the start, None where it does not say.

        Counted are requests that have ended: `notifications_total` counts one that is under way as well, and would look like success.
        """
        status, text = self.service.call("GET", f"{self.path}/metrics")
        if status != OK:
            return None
        ended, failed = (
            sum(float(value) for value in re.findall(rf"(?m)^alertmanager_notification_requests_{name}\{{[^}}]*\}} (\S+)$", text))
            for name in ("total", "failed_total")
        )
        return ended - failed, failed

    def _look_at_delivery(self, receiver: str, before: tuple[float, float] | None) -> None:
        """See that the receiver has taken the message."""
        deadline = time.monotonic() + SENT_S
        now = before
        while before is not None and time.monotonic() < deadline:
            now = self.sent()
            if now is None or now[1] > before[1] or now[0] > before[0]:
                break
            self.sleep(1.0)
        words = {"expected": "taken", "device": receiver}
        if before is None or now is None:
            self.judge("message_is_taken", "unknown", **words, found="", reason="Alertmanager did not say", fix=self.fix)
        elif now[1] > before[1] or now[0] <= before[0]:
            found = "refused" if now[1] > before[1] else "not sent"
            self.judge("message_is_taken", "fail", **words, found=found, fix=f"{self.fix}: it says why; see alertmanager_receivers")
        else:
            self.judge("message_is_taken", "pass", **words, found="taken")

    def look_at_receivers(self, receivers: Sequence[str]) -> None:
        """See that the stated receivers are in force; without any, nobody is told, which is said and stops nothing."""
        if not receivers:
            reason = "no receiver is stated: nobody is told of any alert"
            self.judge("receivers", "skipped", expected="", found="", reason=reason, fix="state alertmanager_receivers")
            return
        answer = self.answer("receivers")
        names = {one["name"] for one in answer or ()} - {NOBODY}
        verdict = "unknown" if answer is None else "pass" if names == {*receivers} else "fail"
        found = ", ".join(sorted(names))
        self.judge("receivers", verdict, expected=", ".join(sorted(receivers)), found=found, fix=f"apply again; {self.fix}")

    def look_at_peers(self, wanted: int) -> None:
        """See that the hosts of the group know each other; after a start they need some seconds."""
        if not wanted:
            self.judge("peers", "skipped", expected="", found="", reason="the group alertmanager has one host", fix="")
            return
        deadline = time.monotonic() + PEERS_S
        while True:
            cluster = (self.answer("status") or {}).get("cluster")
            found = len((cluster or {}).get("peers") or ()) - 1  # itself is one of them
            if cluster is None or found == wanted or time.monotonic() > deadline:
                break
            self.sleep(1.0)
        verdict = "unknown" if cluster is None else "pass" if found == wanted else "fail"
        fix = f"alertmanager_cluster_port must be open between the hosts of the group, for TCP; {self.fix}"
        self.judge("peers", verdict, expected=str(wanted), found="" if cluster is None else str(found), fix=fix)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
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
    wanted = module.params
    service = Service(wanted, "alertmanager")
    alertmanager = Alertmanager(service, wanted["path"], wanted["unit"], time.sleep)
    if service.look_at_access(f"{wanted['path']}/metrics", wanted["unit"]):
        alertmanager.look_at_receivers(wanted["receivers"])
        alertmanager.look_at_way(wanted["receivers"], send=wanted["send"])
        alertmanager.look_at_peers(wanted["peers"])
    service.end(module)


if __name__ == "__main__":
    main()
