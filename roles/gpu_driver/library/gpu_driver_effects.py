#!/usr/bin/python
"""Judge the GPU driver that runs, its options and the RDMA devices: the Ansible module `gpu_driver_effects`, which changes nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = "primus.verdict/1"
SOURCE = "roles/gpu_driver/meta/argument_specs.yml"
FIX_LOAD = "see `journalctl -k | grep -iE 'amdgpu|nvidia|NVRM'` and `dkms status`; a driver that was installed is loaded by a reboot"
FIX_REBOOT = "reboot it: playbooks/day2/reboot_rack.yml"
# How the kernel prints a truth value, beside what people write.
TRUTH = {"Y": "1", "N": "0", "true": "1", "false": "0", "True": "1", "False": "0"}


def read(path: Path) -> str | None:
    """Return a small file's text, None where there is no such file.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def record(wanted: Mapping[str, Any], check: str, verdict: str, **evidence: str) -> dict[str, Any]:
    """Return one verdict record."""
    words = {"check": f"gpu_driver.{check}", "host": wanted["host"], "verdict": verdict, "expected": "", "found": "", **evidence}
    return {**words, "source": SOURCE, "started": time.time(), "schema": SCHEMA}


def look_at_module(wanted: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Compare the version of the module that is loaded; a module of the kernel itself has none."""
    plan = wanted["plan"]
    folder, expected = root / "sys/module" / plan["module"], plan["module_version"] or "loaded"
    if not folder.is_dir():
        reason = f"the module {plan['module']} is not loaded"
        return record(wanted, "loaded", "fail", expected=expected, found="not loaded", reason=reason, fix=FIX_LOAD)
    version = read(folder / "version") or "the kernel's own"
    if not plan["module_version"] or version == expected:
        return record(wanted, "loaded", "pass", expected=expected, found=version)
    reason = f"{plan['module']} {version} runs instead of {expected}"
    return record(wanted, "loaded", "fail", expected=expected, found=version, reason=reason, fix=FIX_REBOOT)


def look_at_options(wanted: Mapping[str, Any], root: Path) -> list[dict[str, Any]]:
    """Compare options of modules with what the kernel says is in force; one that it does not show is unknown."""
    records = []
    for module, options in wanted["options"].items():
        for name, value in options.items():
            check, expected = f"option.{module}.{name}", TRUTH.get(str(value), str(value))
            found = read(root / "sys/module" / module / "parameters" / name)
            if found is None:
                loaded = (root / "sys/module" / module).is_dir()
                reason = f"the kernel does not show {name} of {module}" if loaded else f"{module} is not loaded"
                verdict = "unknown" if loaded else "skipped"
                records.append(record(wanted, check, verdict, expected=expected, reason=reason, fix=f"see `modinfo {module}`"))
                continue
            same = TRUTH.get(found, found) == expected
            words = {} if same else {"reason": f"{name} of {module} is {found} and not {expected}", "fix": FIX_REBOOT}
            records.append(record(wanted, check, "pass" if same else "fail", expected=expected, found=found, **words))
    return records


def judge(wanted: Mapping[str, Any], root: Path) -> list[dict[str, Any]]:
    """Return the verdicts on a host."""
    plan = wanted["plan"]
    if plan["outcome"] == "skipped":
        return [record(wanted, "loaded", "skipped", reason=plan["reason"]), *look_at_options(wanted, root)]
    if plan["outcome"] in {"unknown", "refused"}:
        verdict = "unknown" if plan["outcome"] == "unknown" else "fail"
        return [record(wanted, "plan", verdict, reason=plan["reason"], fix=plan["fix"])]
    return [look_at_module(wanted, root), *look_at_options(wanted, root)]


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "options": {"type": "dict", "required": True},
            "sysfs_root": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    verdicts = judge(module.params, Path(module.params["sysfs_root"]))
    result = {"changed": False, "verdicts": verdicts, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
