#!/usr/bin/python
"""Ansible module `gpu_driver_effects`: verify the loaded GPU driver, its services, RDMA devices and module options. Changes nothing.

It reads sysfs and returns verdict records, which no existing module does. `needs_reboot` in its result tells whether a reboot would load
the requested driver and options; only then the fix of a verdict is a reboot, and tasks/record_reboot.yml marks the host for
playbooks/day2/reboot_rack.yml.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # Exit code and output of a program; None if it does not exist or timed out.
    Runner = Callable[[Sequence[str]], tuple[int | None, str]]

SCHEMA = "primus.verdict/1"
SOURCE = "roles/gpu_driver/meta/argument_specs.yml"
MARK = "run/reboot-required"
OPTIONS_FILE = "etc/modprobe.d/primus-gpu-driver.conf"
FIX_LOAD = "run `modprobe` for the module and read its error, `journalctl -k | grep -iE 'amdgpu|nvidia|NVRM'` and `dkms status`"
FIX_REBOOT = "reboot it: playbooks/day2/reboot_rack.yml"
FIX_DISK = "apply the phase gpu and read `dkms status`; a reboot would load the same version again"
FIX_NOT_TAKEN = (
    "apply the phase gpu, which updates an initramfs that is older than the option; if that does not help, the module ignores the option: "
    "read `modprobe --showconfig` and `journalctl -k`"
)
# Packages that give containers access to GPUs, and a program of each.
TOOLKITS = {"nvidia-container-toolkit": "nvidia-ctk", "amd-container-toolkit": "amd-ctk"}
# Spellings of booleans by the kernel and in inventories.
TRUTH = {"Y": "1", "N": "0", "true": "1", "false": "0", "True": "1", "False": "0"}


def run_program(argv: Sequence[str]) -> tuple[int | None, str]:
    """Return a program's exit code and output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{argv[0]}: {type(error).__name__}"
    return done.returncode, (done.stdout or done.stderr).strip()


def read(path: Path) -> str | None:
    """Return a small file's text, or None if it does not exist.

    Raises:
        OSError: It exists but cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def record(request: Mapping[str, Any], check: str, verdict: str, **evidence: str) -> dict[str, Any]:
    """Return one verdict record."""
    fields = {"check": f"gpu_driver.{check}", "host": request["host"], "verdict": verdict, "expected": "", "found": "", **evidence}
    return {**fields, "source": SOURCE, "started": time.time(), "schema": SCHEMA}


def check_module(request: Mapping[str, Any], root: Path, run: Runner) -> dict[str, Any]:
    """Compare the version of the loaded module; the kernel's own modules have none."""
    plan = request["plan"]
    folder, expected = root / "sys/module" / plan["module"], plan["module_version"] or "loaded"
    if not folder.is_dir():
        reason = f"the module {plan['module']} is not loaded"
        fix = FIX_REBOOT if (root / MARK).exists() else FIX_LOAD
        return record(request, "loaded", "fail", expected=expected, found="not loaded", reason=reason, fix=fix)
    version = read(folder / "version") or "the kernel's own"
    if not plan["module_version"] or version == expected:
        return record(request, "loaded", "pass", expected=expected, found=version)
    reason, fix = f"{plan['module']} {version} runs instead of {expected}", FIX_REBOOT
    status, on_disk = run(["modinfo", "--basedir", str(root), "--field", "version", plan["module"]])
    if status == 0 and on_disk != expected:
        reason, fix = f"{reason}, and {on_disk or 'the kernel version'} is on the disk", FIX_DISK
    return record(request, "loaded", "fail", expected=expected, found=version, reason=reason, fix=fix)


def existed_at_boot(root: Path) -> bool:
    """Return whether the role's file of module options existed when the host booted; False if unknown."""
    lines = (read(root / "proc/stat") or "").splitlines()
    boot_s = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
    path = root / OPTIONS_FILE
    return path.exists() and path.stat().st_mtime < boot_s


def check_options(request: Mapping[str, Any], root: Path) -> list[dict[str, Any]]:
    """Compare module options with the kernel's values; an option that the kernel does not show is unknown."""
    records = []
    container = request["facts"]["container"]
    for module, options in request["options"].items():
        for name, value in options.items():
            check, expected = f"option.{module}.{name}", TRUTH.get(str(value), str(value))
            found = read(root / "sys/module" / module / "parameters" / name)
            if container:
                reason = f"the kernel belongs to the machine that runs this {container} container"
                records.append(record(request, check, "skipped", expected=expected, reason=reason))
                continue
            if found is None:
                loaded = (root / "sys/module" / module).is_dir()
                reason = f"the kernel does not show {name} of {module}" if loaded else f"{module} is not loaded"
                verdict = "unknown" if loaded else "skipped"
                records.append(record(request, check, verdict, expected=expected, reason=reason, fix=f"see `modinfo {module}`"))
                continue
            same = TRUTH.get(found, found) == expected
            fix = FIX_NOT_TAKEN if existed_at_boot(root) else FIX_REBOOT
            fields = {} if same else {"reason": f"{name} of {module} is {found}, not {expected}", "fix": fix}
            records.append(record(request, check, "pass" if same else "fail", expected=expected, found=found, **fields))
    return records


def check_fabric_manager(request: Mapping[str, Any], loaded: Mapping[str, Any], run: Runner) -> dict[str, Any]:
    """Check that the fabric manager runs on hosts with NVSwitches; without it no program can use the GPUs."""
    check, unit = "fabric_manager", "nvidia-fabricmanager.service"
    if not request["plan"]["fabric"]:
        return record(request, check, "skipped", reason="this host has no NVSwitch")
    if loaded["verdict"] != "pass":
        return record(request, check, "skipped", expected="active", reason="it starts with the driver: see gpu_driver.loaded")
    status, found = run(["systemctl", "is-active", unit])
    if found == "active":
        return record(request, check, "pass", expected="active", found=found)
    verdict = "unknown" if status is None or found == "activating" else "fail"
    fix = f"apply the phase gpu, which installs it in the driver's version; read `journalctl --unit {unit}`"
    return record(request, check, verdict, expected="active", found=found, reason=f"{unit} is {found or 'not installed'}", fix=fix)


def check_toolkit(request: Mapping[str, Any], run: Runner) -> dict[str, Any]:
    """Check that the program of the container toolkit runs, if the driver's packages include one."""
    names = [package["name"] for package in request["plan"]["packages"] if package["name"] in TOOLKITS]
    check = "container_toolkit"
    if not names:
        return record(request, check, "skipped", reason="the inventory requests no container toolkit")
    toolkit = names[0]
    status, output = run([TOOLKITS[toolkit], "--version"])
    first = (output.splitlines() or [""])[0]
    if status == 0:
        return record(request, check, "pass", expected=toolkit, found=first)
    reason = f"{TOOLKITS[toolkit]} does not run: {first or status}"
    return record(
        request, check, "fail", expected=toolkit, found=first, reason=reason, fix=f"apply the phase gpu, which installs {toolkit}"
    )


def check_rdma(request: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Check that every RDMA device has a verbs device for programs (kernel: Documentation/ABI/stable/sysfs-class-infiniband)."""
    devices = request["facts"]["rdma_devices"]
    if not devices:
        bound = sorted(path.name for path in (root / "sys/bus/pci/drivers/mlx5_core").glob("*:*"))
        if bound:
            reason = f"{bound[0]} uses the driver mlx5_core, but the host has no RDMA device"
            return record(
                request, "rdma", "unknown", reason=reason, fix="run `modprobe mlx5_ib` if it is an RDMA device; check `rdma link`"
            )
        return record(request, "rdma", "skipped", reason="this host has no RDMA device")
    opened = {read(path) for path in (root / "sys/class/infiniband_verbs").glob("uverbs*/ibdev")}
    closed = [name for name in devices if name not in opened]
    expected, found = ", ".join(devices), ", ".join(name for name in devices if name in opened)
    if not closed:
        return record(request, "rdma", "pass", expected=expected, found=found)
    reason = f"no program can open {', '.join(closed)}: it has no verbs device"
    return record(
        request, "rdma", "fail", expected=expected, found=found, reason=reason, fix="`modprobe ib_uverbs`; rdma-core loads it at boot"
    )


def verify(request: Mapping[str, Any], root: Path, run: Runner = run_program) -> list[dict[str, Any]]:
    """Return the verdicts of a host."""
    plan = request["plan"]
    if plan["outcome"] == "skipped":
        return [record(request, "loaded", "skipped", reason=plan["reason"]), *check_options(request, root)]
    if plan["outcome"] in {"unknown", "refused"}:
        verdict = "unknown" if plan["outcome"] == "unknown" else "fail"
        return [record(request, "plan", verdict, reason=plan["reason"], fix=plan["fix"])]
    loaded = check_module(request, root, run)
    others = (check_fabric_manager(request, loaded, run), check_toolkit(request, run), check_rdma(request, root))
    return [loaded, *others, *check_options(request, root)]


def needs_reboot(verdicts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a reboot would fix one of the verdicts."""
    return any(verdict.get("fix") == FIX_REBOOT for verdict in verdicts)


def main() -> None:
    """Run the checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "facts": {"type": "dict", "required": True},
            "options": {"type": "dict", "required": True},
            "sysfs_root": {"type": "path", "required": True},
            "report": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    verdicts = verify(module.params, Path(module.params["sysfs_root"]))
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    result = {"changed": False, "verdicts": verdicts, "needs_reboot": needs_reboot(verdicts), "fails": bool(failed)}
    if not module.params["report"]:  # an apply continues; the verification at its end reports the verdicts
        module.exit_json(**result)
    result["stdout"] = json.dumps({"verdicts": verdicts})
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
