#!/usr/bin/python
"""Ask Prometheus what it scrapes, judges, tells and keeps: the Ansible module `prometheus_effects`, which changes nothing."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.web_service import ARGUMENTS, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Of the disk that holds what was collected.
LEAST_FREE = 0.1
NAMED = 20


class Prometheus:
    """Verdicts on one server."""

    def __init__(self, service: Service, path: str, unit: str) -> None:
        """Keep how to ask; `path` is what its own URL begins with."""
        self.service, self.path, self.judge = service, path, service.judge
        self.log = f"see `journalctl -u {unit} -n 30`"

    def read(self, what: str) -> Any:
        """Return what the API says, None where it says nothing."""
        return self.service.read(f"{self.path}/api/v1/{what}")

    def look_at_targets(self, wanted: Mapping[str, Iterable[str]], wait_s: float, sleep: Callable[[float], None]) -> None:
        """See that every host of the inventory is scraped; what was not looked at yet, or was missed once, is waited for."""
        deadline = time.monotonic() + wait_s
        while True:
            active = (self.read("targets?state=active") or {}).get("activeTargets")
            found = {(one["labels"].get("job"), one["labels"].get("instance")): one for one in active or ()}
            keys = [(job, name) for job, names in wanted.items() for name in names]
            waiting = [key for key in keys if found.get(key, {}).get("health") != "up"]
            if not waiting or active is None or time.monotonic() > deadline:
                break
            sleep(2.0)
        if active is None:
            self.judge("targets", "unknown", expected="all up", found="", reason="Prometheus did not say", fix=self.log)
            return
        for job, names in wanted.items():
            self._judge_job(job, {name: found.get((job, name), {}) for name in names})

    def _judge_job(self, job: str, targets: Mapping[str, Mapping[str, Any]]) -> None:
        down = {name: one.get("lastError") or "it is no target" for name, one in targets.items() if one.get("health") == "down" or not one}
        unseen = [name for name, one in targets.items() if one and one.get("health") not in {"up", "down"}]
        words = {"expected": f"{len(targets)} up", "found": f"{len(targets) - len(down) - len(unseen)} up", "device": job}
        fix = f"is the host up, does its exporter run (`verify` of the host), and does no firewall stand between them? {self.log}"
        if not targets:
            reason = f"the inventory has no host for the job {job}"
            self.judge("targets", "skipped", **words, reason=reason, fix=f"put a host into the group {job}" if job != "node" else "")
        elif down:
            shown = "; ".join(f"{name}: {error}" for name, error in list(down.items())[:NAMED])
            self.judge("targets", "fail", **words, reason=f"not scraped: {shown}", fix=fix)
        elif unseen:
            self.judge("targets", "unknown", **words, reason=f"not looked at yet: {', '.join(unseen[:NAMED])}", fix="verify again")
        else:
            self.judge("targets", "pass", **words)

    def look_at_rules(self, wanted: Iterable[str]) -> None:
        """See that the rules are loaded and can be judged."""
        groups = (self.read("rules?type=alert") or {}).get("groups")
        rules = [rule for group in groups or () for rule in group["rules"]]
        missing = sorted({*wanted} - {rule["name"] for rule in rules})
        broken = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule.get("health") == "err"]
        verdict = "unknown" if groups is None else "fail" if missing or broken else "pass"
        found = "" if groups is None else f"{len(rules)} loaded"
        reason = "; ".join(([f"not loaded: {', '.join(missing)}"] if missing else []) + broken) or "Prometheus did not say"
        self.judge("rules", verdict, expected=f"{len(set(wanted))} loaded", found=found, reason=reason, fix=f"apply again; {self.log}")

    def look_at_alertmanagers(self, wanted: Iterable[str]) -> None:
        """See that alerts are handed to every Alertmanager; without one, nobody is told, which is said and stops nothing."""
        if not list(wanted):
            reason = "the group alertmanager has no host: alerts are shown in Prometheus, and nobody is told of them"
            self.judge("alertmanagers", "skipped", expected="", found="", reason=reason, fix="put a host into the group alertmanager")
            return
        answer = self.read("alertmanagers")
        active = {one["url"].split("://", 1)[-1].split("/", 1)[0] for one in (answer or {}).get("activeAlertmanagers") or ()}
        missing = sorted({*wanted} - active)
        verdict = "unknown" if answer is None else "fail" if missing else "pass"
        found = "" if answer is None else ", ".join(sorted(active))
        reason = f"not told: {', '.join(missing)}" if missing else "Prometheus did not say"
        self.judge("alertmanagers", verdict, expected=", ".join(sorted(wanted)), found=found, reason=reason, fix=self.log)

    def look_at_settings(self, retention: str, metrics: str) -> None:
        """See that the settings in force are those of the files, and that numbers are kept as long as stated."""
        flags = self.read("status/flags") or {}
        found = str(flags.get("storage.tsdb.retention.time", ""))
        # It writes 14d as 2w.
        verdict = "unknown" if not found else "pass" if _hours(found) == _hours(retention) else "fail"
        self.judge("retention", verdict, expected=retention, found=found, reason="" if found else "Prometheus did not say", fix=self.log)
        loaded = next(
            (line.split()[-1] for line in metrics.splitlines() if line.startswith("prometheus_config_last_reload_successful ")), ""
        )
        verdict = "unknown" if not loaded else "pass" if loaded == "1" else "fail"
        self.judge("settings", verdict, expected="1", found=loaded, reason="" if loaded else "Prometheus did not say", fix=self.log)

    def look_at_room(self, data_dir: str) -> None:
        """See that the disk has room for what will be collected."""
        try:
            usage = shutil.disk_usage(data_dir)
        except OSError as error:
            self.judge("disk", "unknown", expected="", found="", reason=str(error), fix=f"see `ls -l {data_dir}`")
            return
        words = {"expected": f">= {100 * LEAST_FREE:.0f} % free under {data_dir}", "found": f"{100 * usage.free / usage.total:.0f} % free"}
        fix = "lower prometheus_retention_days or set prometheus_retention_gib, or give it a larger disk"
        self.judge("disk", "pass" if usage.free >= LEAST_FREE * usage.total else "fail", **words, fix=fix)


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
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "path": {"type": "str", "required": True},
            "wait_s": {"type": "float", "required": True},
            "targets": {"type": "dict", "required": True},
            "rules": {"type": "list", "elements": "str", "required": True},
            "alertmanagers": {"type": "list", "elements": "str", "required": True},
            "retention": {"type": "str", "required": True},
            "data_dir": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    service = Service(wanted, "prometheus")
    prometheus = Prometheus(service, wanted["path"], wanted["unit"])
    metrics = service.look_at_access(f"{wanted['path']}/metrics", wanted["unit"])
    if metrics:
        prometheus.look_at_targets(wanted["targets"], wanted["wait_s"], time.sleep)
        prometheus.look_at_rules(wanted["rules"])
        prometheus.look_at_alertmanagers(wanted["alertmanagers"])
        prometheus.look_at_settings(wanted["retention"], metrics)
    prometheus.look_at_room(wanted["data_dir"])
    service.end(module)


if __name__ == "__main__":
    main()
