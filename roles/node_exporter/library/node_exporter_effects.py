#!/usr/bin/python
"""Check node_exporter's access control, metrics and text files: the Ansible module `node_exporter_effects`. It changes nothing.

It is a module of its own because it reports verdicts, which ansible.builtin.uri cannot.
"""

from __future__ import annotations

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.web_service import ARGUMENTS, Service


def check_metrics(service: Service, text: str, unit: str) -> None:
    """Check that the basic metrics are present, and that node_exporter could read every text file of other programs."""
    fix = f"read `journalctl -u {unit} -n 30`"
    names = ("node_uname_info", "node_memory_MemTotal_bytes", "node_cpu_seconds_total", "node_filesystem_avail_bytes")
    missing = [name for name in names if not re.search(rf"(?m)^{name}[ {{]", text)]
    verdict = "unknown" if not text else "fail" if missing else "pass"
    found = f"missing: {', '.join(missing)}" if missing else "present"
    service.verdicts.add("metrics", verdict, expected="present", found=found, fix=fix)
    error = re.search(r"(?m)^node_textfile_scrape_error (\S+)$", text)
    found = error[1] if error else ""
    verdict = "unknown" if not found else "pass" if found == "0" else "fail"
    reason = "a file in its folder is not in Prometheus' text format" if found == "1" else ""
    fix = f"{fix}, which names the file; `promtool check metrics < FILE` shows the error"
    service.verdicts.add("text_files", verdict, expected="0", found=found, reason=reason, fix=fix)


def main() -> None:
    """Read the arguments, run the checks and report verdicts."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    service = Service(module.params, "node_exporter")
    check_metrics(service, service.check_access("/metrics", module.params["unit"]), module.params["unit"])
    service.verdicts.finish(module)


if __name__ == "__main__":
    main()
