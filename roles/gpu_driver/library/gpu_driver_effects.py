#!/usr/bin/python
"""Judge the GPU driver that runs, what it needs beside it, RDMA devices and module options: the Ansible module `gpu_driver_effects`.

It changes nothing. `waits` in its result is whether a reboot would bring what is stated; only then a verdict's fix is a reboot, and
tasks/waits.yml leaves the mark on which playbooks/day2/reboot_rack.yml acts. Options of RDMA modules are judged like all others.
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

    # Status and output of a program; None as its status: there is none, or it did not end.
    Runner = Callable[[Sequence[str]], tuple[int | None, str]]

SCHEMA = "primus.verdict/1"
SOURCE = "roles/gpu_driver/meta/argument_specs.yml"
MARK = "run/reboot-required"
OPTIONS_FILE = "etc/modprobe.d/primus-gpu-driver.conf"
FIX_LOAD = "see `journalctl -k | grep -iE 'amdgpu|nvidia|NVRM'` and `dkms status`; `modprobe` of it says what stops it"
FIX_REBOOT = "reboot it: playbooks/day2/reboot_rack.yml"
FIX_DISK = "apply the phase gpu, and see `dkms status`: a reboot would load the same again"
FIX_NOT_TAKEN = (
    "apply the phase gpu, which renews an initramfs that is older than the option; else the module does not take it: "
    "see `modprobe --showconfig` and `journalctl -k`"
)
# Packages that give containers their GPUs, and the program of each that says that it is there.
TOOLKITS = {"nvidia-container-toolkit": "nvidia-ctk", "amd-container-toolkit": "amd-ctk"}
# How the kernel prints a truth value, beside what people write.
TRUTH = {"Y": "1", "N": "0", "true": "1", "false": "0", "True": "1", "False": "0"}


def run_program(argv: Sequence[str]) -> tuple[int | None, str]:
    """Return a program's status and what it prints."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{argv[0]}: {type(error).__name__}"
    return done.returncode, (done.stdout or done.stderr).strip()


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


def look_at_module(wanted: Mapping[str, Any], root: Path, run: Runner) -> dict[str, Any]:
    """Compare the version of the module that is loaded; a module of the kernel itself has none."""
    plan = wanted["plan"]
    folder, expected = root / "sys/module" / plan["module"], plan["module_version"] or "loaded"
    if not folder.is_dir():
        reason = f"the module {plan['module']} is not loaded"
        fix = FIX_REBOOT if (root / MARK).exists() else FIX_LOAD
        return record(wanted, "loaded", "fail", expected=expected, found="not loaded", reason=reason, fix=fix)
    version = read(folder / "version") or "the kernel's own"
    if not plan["module_version"] or version == expected:
        return record(wanted, "loaded", "pass", expected=expected, found=version)
    reason, fix = f"{plan['module']} {version} runs instead of {expected}", FIX_REBOOT
    status, on_disk = run(["modinfo", "--basedir", str(root), "--field", "version", plan["module"]])
    if status == 0 and on_disk != expected:
        reason, fix = f"{reason}, and {on_disk or 'the one of the kernel'} is on the disk", FIX_DISK
    return record(wanted, "loaded", "fail", expected=expected, found=version, reason=reason, fix=fix)


def is_older_than_boot(root: Path) -> bool:
    """Whether our file of options was there when the host booted; what cannot be told counts as no."""
    lines = (read(root / "proc/stat") or "").splitlines()
    boot_s = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
    path = root / OPTIONS_FILE
    return path.exists() and path.stat().st_mtime < boot_s


def look_at_options(wanted: Mapping[str, Any], root: Path) -> list[dict[str, Any]]:
    """Compare options of modules with what the kernel says is in force; one that it does not show is unknown."""
    records = []
    container = wanted["facts"]["container"]
    for module, options in wanted["options"].items():
        for name, value in options.items():
            check, expected = f"option.{module}.{name}", TRUTH.get(str(value), str(value))
            found = read(root / "sys/module" / module / "parameters" / name)
            if container:
                reason = f"the kernel belongs to the machine below this {container} container"
                records.append(record(wanted, check, "skipped", expected=expected, reason=reason))
                continue
            if found is None:
                loaded = (root / "sys/module" / module).is_dir()
                reason = f"the kernel does not show {name} of {module}" if loaded else f"{module} is not loaded"
                verdict = "unknown" if loaded else "skipped"
                records.append(record(wanted, check, verdict, expected=expected, reason=reason, fix=f"see `modinfo {module}`"))
                continue
            same = TRUTH.get(found, found) == expected
            fix = FIX_NOT_TAKEN if is_older_than_boot(root) else FIX_REBOOT
            words = {} if same else {"reason": f"{name} of {module} is {found} and not {expected}", "fix": fix}
            records.append(record(wanted, check, "pass" if same else "fail", expected=expected, found=found, **words))
    return records


def look_at_fabric(wanted: Mapping[str, Any], loaded: Mapping[str, Any], run: Runner) -> dict[str, Any]:
    """Where GPUs reach each other through NVSwitches, they wait for the fabric manager before any program may use them."""
    check, unit = "fabric_manager", "nvidia-fabricmanager.service"
    if not wanted["plan"]["fabric"]:
        return record(wanted, check, "skipped", reason="this host has no NVSwitch that needs it")
    if loaded["verdict"] != "pass":
        return record(wanted, check, "skipped", expected="active", reason="it starts with the driver: see gpu_driver.loaded")
    status, found = run(["systemctl", "is-active", unit])
    if found == "active":
        return record(wanted, check, "pass", expected="active", found=found)
    verdict = "unknown" if status is None or found == "activating" else "fail"
    fix = f"`journalctl --unit {unit}`; it must have the driver's own version, and an apply of the phase gpu installs it"
    return record(wanted, check, verdict, expected="active", found=found, reason=f"{unit} is {found or 'not there'}", fix=fix)


def look_at_toolkit(wanted: Mapping[str, Any], run: Runner) -> dict[str, Any]:
    """Where a package is asked for that gives containers their GPUs, its program must answer."""
    check, asked = "container_toolkit", [one["name"] for one in wanted["plan"]["packages"] if one["name"] in TOOLKITS]
    if not asked:
        return record(wanted, check, "skipped", reason="this role was asked for none")
    status, said = run([TOOLKITS[asked[0]], "--version"])
    first = (said.splitlines() or [""])[0]
    if status == 0:
        return record(wanted, check, "pass", expected=asked[0], found=first)
    reason = f"{TOOLKITS[asked[0]]} does not run: {first or status}"
    return record(
        wanted, check, "fail", expected=asked[0], found=first, reason=reason, fix=f"apply the phase gpu, which installs {asked[0]}"
    )


def look_at_rdma(wanted: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Programs reach an RDMA device through a verbs device of its own: Documentation/ABI/stable/sysfs-class-infiniband of the kernel."""
    devices = wanted["facts"]["rdma_devices"]
    if not devices:
        bound = sorted(path.name for path in (root / "sys/bus/pci/drivers/mlx5_core").glob("*:*"))
        if bound:
            reason = f"{bound[0]} has mlx5_core for a driver, and the host has no RDMA device"
            return record(wanted, "rdma", "unknown", reason=reason, fix="`modprobe mlx5_ib`, if it is meant for RDMA; see `rdma link`")
        return record(wanted, "rdma", "skipped", reason="this host has no RDMA device")
    opened = {read(path) for path in (root / "sys/class/infiniband_verbs").glob("uverbs*/ibdev")}
    closed = [name for name in devices if name not in opened]
    expected, found = ", ".join(devices), ", ".join(name for name in devices if name in opened)
    if not closed:
        return record(wanted, "rdma", "pass", expected=expected, found=found)
    reason = f"no program can open {', '.join(closed)}: it has no verbs device"
    return record(
        wanted, "rdma", "fail", expected=expected, found=found, reason=reason, fix="`modprobe ib_uverbs`; rdma-core loads it at boot"
    )


def judge(wanted: Mapping[str, Any], root: Path, run: Runner = run_program) -> list[dict[str, Any]]:
    """Return the verdicts on a host."""
    plan = wanted["plan"]
    if plan["outcome"] == "skipped":
        return [record(wanted, "loaded", "skipped", reason=plan["reason"]), *look_at_options(wanted, root)]
    if plan["outcome"] in {"unknown", "refused"}:
        verdict = "unknown" if plan["outcome"] == "unknown" else "fail"
        return [record(wanted, "plan", verdict, reason=plan["reason"], fix=plan["fix"])]
    loaded = look_at_module(wanted, root, run)
    beside = (look_at_fabric(wanted, loaded, run), look_at_toolkit(wanted, run), look_at_rdma(wanted, root))
    return [loaded, *beside, *look_at_options(wanted, root)]


def waits(verdicts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a reboot would mend one of them."""
    return any(one.get("fix") == FIX_REBOOT for one in verdicts)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "facts": {"type": "dict", "required": True},
            "options": {"type": "dict", "required": True},
            "sysfs_root": {"type": "path", "required": True},
            "only_look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    verdicts = judge(module.params, Path(module.params["sysfs_root"]))
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]
    result = {"changed": False, "verdicts": verdicts, "waits": waits(verdicts), "fails": bool(failed)}
    if module.params["only_look"]:  # what is found is no verdict of this run: an apply goes on, and its last phase judges
        module.exit_json(**result)
    result["stdout"] = json.dumps({"verdicts": verdicts})
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
