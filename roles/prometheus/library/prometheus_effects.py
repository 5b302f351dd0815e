#!/usr/bin/python
"""Check Prometheus' access control, targets, rules, Alertmanagers and storage: the Ansible module `prometheus_effects`. It changes nothing.

It is a module of its own because it reports verdicts, which ansible.builtin.uri cannot.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.web_service import ARGUMENTS, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

# The share of the disk with the metrics that must be free.
MIN_FREE = 0.1
MAX_NAMES = 20
NO_ANSWER = "Prometheus did not answer"
# How Go's net package, in which Prometheus is written, words a scrape that timed out, and a machine that cannot be reached.
TIMEOUTS = ("context deadline exceeded", "i/o timeout", "Client.Timeout exceeded")
NO_MACHINE = ("no route to host", "host is down", "network is unreachable")


class Prometheus:
    """Checks of one server."""

    def __init__(self, service: Service, path: str, unit: str) -> None:
        """Store how to call the server; `path` is the path of its external URL."""
        self.service, self.path, self.verdicts = service, path, service.verdicts
        self.log = f"read `journalctl -u {unit} -n 30`"

    def read(self, resource: str) -> Any:
        """Return the data of an API resource, or None if there is no answer."""
        return (self.service.read(f"{self.path}/api/v1/{resource}") or {}).get("data")

    def check_targets(
        self, expected: Mapping[str, Iterable[str]], wait_s: float, sleep: Callable[[float], None], answering: Iterable[str] = ()
    ) -> None:
        """Check that every host of the inventory is scraped. Waits for targets that are pending or missed one scrape.

        Args:
            expected: The hosts of each scrape job.
            wait_s: Seconds to wait until all targets are up.
            sleep: Called between two queries.
            answering: The hosts that this run has reached. No route to another one is not the fault of this host.
        """
        deadline, answering = time.monotonic() + wait_s, frozenset(answering)
        while True:
            active = (self.read("targets?state=active") or {}).get("activeTargets")
            targets = {(one["labels"].get("job"), one["labels"].get("instance")): one for one in active or ()}
            keys = [(job, name) for job, names in expected.items() for name in names]
            waiting = [key for key in keys if _may_come_up(key[1], targets.get(key, {}), answering)]
            if not waiting or active is None or time.monotonic() > deadline:
                break
            sleep(2.0)
        if active is None:
            self.verdicts.add("targets", "unknown", expected="all up", found="", reason=NO_ANSWER, fix=self.log)
            return
        for job, names in expected.items():
            self._check_job(job, {name: targets.get((job, name), {}) for name in names}, answering)

    def _check_job(self, job: str, targets: Mapping[str, Mapping[str, Any]], answering: Collection[str]) -> None:
        silent = {name: why for name, one in targets.items() if (why := _no_verdict(name, one, answering))}
        not_up = {name: one for name, one in targets.items() if one.get("health") != "up" and name not in silent}
        down = {name: one.get("lastError") or "not a target" for name, one in not_up.items()}
        fields = {"expected": f"{len(targets)} up", "found": f"{len(targets) - len(down) - len(silent)} up", "device": job}
        unknown = f"unknown: {_listed(silent)}" if silent else ""
        if not targets:
            reason = f"the inventory has no host for the job {job}"
            fix = f"add a host to the group {job}" if job != "node" else ""
            self.verdicts.add("targets", "skipped", **fields, reason=reason, fix=fix)
        elif down:
            reason = "; ".join(filter(None, (f"not scraped: {_listed(down)}", unknown)))
            fix = f"check that the host is up, its exporter runs (`verify` of the host) and no firewall blocks the port; {self.log}"
            self.verdicts.add("targets", "fail", **fields, reason=reason, fix=fix)
        elif silent:
            fix = "start the hosts that this run did not reach, then run `primus-bootstrap verify hosts.yaml`"
            self.verdicts.add("targets", "unknown", **fields, reason=unknown, fix=fix)
        else:
            self.verdicts.add("targets", "pass", **fields)

    def check_rules(self, expected: Iterable[str]) -> None:
        """Check that the alert rules are loaded and that none of them has an error."""
        groups = (self.read("rules?type=alert") or {}).get("groups")
        rules = [rule for group in groups or () for rule in group["rules"]]
        missing = sorted({*expected} - {rule["name"] for rule in rules})
        errors = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule.get("health") == "err"]
        verdict = "unknown" if groups is None else "fail" if missing or errors else "pass"
        found = "" if groups is None else f"{len(rules)} loaded"
        reason = "; ".join(([f"not loaded: {', '.join(missing)}"] if missing else []) + errors) or NO_ANSWER
        fix = f"apply the phase monitoring again; {self.log}"
        self.verdicts.add("rules", verdict, expected=f"{len(set(expected))} loaded", found=found, reason=reason, fix=fix)

    def check_alertmanagers(self, expected: Iterable[str]) -> None:
        """Check that Prometheus sends alerts to every Alertmanager; skipped if there is none."""
        if not list(expected):
            reason = "the group alertmanager has no host: alerts are visible in Prometheus, but are not sent"
            self.verdicts.skip("alertmanagers", reason, fix="add a host to the group alertmanager")
            return
        answer = self.read("alertmanagers")
        active = {one["url"].split("://", 1)[-1].split("/", 1)[0] for one in (answer or {}).get("activeAlertmanagers") or ()}
        missing = sorted({*expected} - active)
        verdict = "unknown" if answer is None else "fail" if missing else "pass"
        found = "" if answer is None else ", ".join(sorted(active))
        reason = f"not in use: {', '.join(missing)}" if missing else NO_ANSWER
        self.verdicts.add("alertmanagers", verdict, expected=", ".join(sorted(expected)), found=found, reason=reason, fix=self.log)

    def check_configuration(self, retention: str, metrics: str) -> None:
        """Check that the last reload succeeded, and that the retention is the configured one."""
        flags = self.read("status/flags") or {}
        found = str(flags.get("storage.tsdb.retention.time", ""))
        # Prometheus prints 14d as 2w.
        verdict = "unknown" if not found else "pass" if _hours(found) == _hours(retention) else "fail"
        self.verdicts.add("retention", verdict, expected=retention, found=found, reason="" if found else NO_ANSWER, fix=self.log)
        name = "prometheus_config_last_reload_successful "
        loaded = next((line.split()[-1] for line in metrics.splitlines() if line.startswith(name)), "")
        verdict = "unknown" if not loaded else "pass" if loaded == "1" else "fail"
        self.verdicts.add("configuration", verdict, expected="1", found=loaded, reason="" if loaded else NO_ANSWER, fix=self.log)

    def check_disk(self, data_dir: str) -> None:
        """Check that the disk has space for further metrics."""
        try:
            usage = shutil.disk_usage(data_dir)
        except OSError as error:
            self.verdicts.add("disk", "unknown", reason=str(error), fix=f"run `ls -l {data_dir}`")
            return
        expected = f">= {100 * MIN_FREE:.0f} % free under {data_dir}"
        found = f"{100 * usage.free / usage.total:.0f} % free"
        fix = "lower prometheus_retention_days, set prometheus_retention_gib, or enlarge the disk"
        verdict = "pass" if usage.free >= MIN_FREE * usage.total else "fail"
        self.verdicts.add("disk", verdict, expected=expected, found=found, fix=fix)


def _no_verdict(name: str, target: Mapping[str, Any], answering: Collection[str]) -> str:
    """Return why it is unknown whether a target works, or an empty string."""
    error = str(target.get("lastError") or "")
    if not target or target.get("health") == "up":
        return ""
    if target.get("health") != "down":
        return "not scraped yet"
    timed_out = any(text in error for text in TIMEOUTS)
    if name not in answering and (timed_out or any(text in error for text in NO_MACHINE)):
        return f"this run did not reach the host ({error})"
    return "its last scrape timed out" if timed_out else ""


def _may_come_up(name: str, target: Mapping[str, Any], answering: Collection[str]) -> bool:
    """Return whether it is worth waiting for a target: not for one on a host that is lost."""
    return target.get("health") != "up" and not _no_verdict(name, target, answering).startswith("this run did not reach")


def _listed(reasons: Mapping[str, str]) -> str:
    more = f"; and {len(reasons) - MAX_NAMES} more" if len(reasons) > MAX_NAMES else ""
    return "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:MAX_NAMES]) + more


def _hours(duration: str) -> float:
    """Return a duration of Prometheus (`2w`, `30d`, `1d12h`) in hours; https://prometheus.io/docs/prometheus/latest/querying/basics/."""
    units = {"y": 8760.0, "w": 168.0, "d": 24.0, "h": 1.0, "m": 1 / 60, "s": 1 / 3600}
    total, number = 0.0, ""
    for letter in duration.replace("ms", ""):
        if letter.isdigit():
            number += letter
        elif number:
            total, number = total + int(number) * units.get(letter, 0.0), ""
    return total


def main() -> None:
    """Read the arguments, run the checks and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "path": {"type": "str", "required": True},
            "wait_s": {"type": "float", "required": True},
            "targets": {"type": "dict", "required": True},
            "answering": {"type": "list", "elements": "str", "required": True},
            "rules": {"type": "list", "elements": "str", "required": True},
            "alertmanagers": {"type": "list", "elements": "str", "required": True},
            "retention": {"type": "str", "required": True},
            "data_dir": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    service = Service(params, "prometheus")
    prometheus = Prometheus(service, params["path"], params["unit"])
    metrics = service.check_access(f"{params['path']}/metrics", params["unit"])
    if metrics:
        prometheus.check_targets(params["targets"], params["wait_s"], time.sleep, params["answering"])
        prometheus.check_rules(params["rules"])
        prometheus.check_alertmanagers(params["alertmanagers"])
        prometheus.check_configuration(params["retention"], metrics)
    prometheus.check_disk(params["data_dir"])
    service.verdicts.finish(module)


if __name__ == "__main__":
    main()
