#!/usr/bin/python
"""Ask node_exporter for its numbers as Prometheus does, and as somebody who may not: the Ansible module `node_exporter_effects`."""

from __future__ import annotations

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.web_service import ARGUMENTS, Service


def look_at_numbers(service: Service, text: str, unit: str) -> None:
    """See that the numbers are there, and that every file of another program could be read."""
    fix = f"see `journalctl -u {unit} -n 30`"
    names = ("node_uname_info", "node_memory_MemTotal_bytes", "node_cpu_seconds_total", "node_filesystem_avail_bytes")
    missing = [name for name in names if not re.search(rf"(?m)^{name}[ {{]", text)]
    verdict = "unknown" if not text else "fail" if missing else "pass"
    service.judge("numbers", verdict, expected="there", found=f"not there: {', '.join(missing)}" if missing else "there", fix=fix)
    error = re.search(r"(?m)^node_textfile_scrape_error (\S+)$", text)
    found = error[1] if error else ""
    verdict = "unknown" if not found else "pass" if found == "0" else "fail"
    reason = "a file in its folder is not in Prometheus' text format" if found == "1" else ""
    fix = f"{fix}: it names the file; `promtool check metrics < FILE` says what is wrong"
    service.judge("text_files", verdict, expected="0", found=found, reason=reason, fix=fix)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    service = Service(module.params, "node_exporter")
    look_at_numbers(service, service.look_at_access("/metrics", module.params["unit"]), module.params["unit"])
    service.end(module)


if __name__ == "__main__":
    main()
