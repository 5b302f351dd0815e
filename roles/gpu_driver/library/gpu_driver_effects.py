#!/usr/bin/python
"""Ansible module `gpu_driver_effects`: verify the loaded GPU driver, its services, RDMA devices and module options. Changes nothing.

It reads sysfs and returns verdict records, which no existing module does. `needs_reboot` in its result tells whether a reboot would load
the requested driver and options; only then the fix of a verdict is a reboot, and tasks/record_reboot.yml marks the host for
playbooks/day2/reboot_rack.yml.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # Exit code and output of a program; None if it does not exist or timed out.
    Runner = Callable[[Sequence[str]], tuple[int | None, str]]

CALL_S = 60.0
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
        done = run_command(argv, timeout_s=CALL_S)
    except OSError as error:
        return None, f"{argv[0]}: {type(error).__name__}"
    return done.code, (done.stdout or done.stderr).strip()


def read(path: Path) -> str | None:
    """Return a small file's text, or None if it does not exist.

    Raises:
        OSError: It exists but cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def check_module(verdicts: Verdicts, plan: Mapping[str, Any], root: Path, run: Runner) -> bool:
    """Compare the version of the loaded module; the kernel's own modules have none. Return whether it is the right one."""
    folder, expected = root / "sys/module" / plan["module"], plan["module_version"] or "loaded"
    if not folder.is_dir():
        reason = f"the module {plan['module']} is not loaded"
        fix = FIX_REBOOT if (root / MARK).exists() else FIX_LOAD
        verdicts.add("loaded", "fail", expected=expected, found="not loaded", reason=reason, fix=fix)
        return False
    version = read(folder / "version") or "the kernel's own"
    if not plan["module_version"] or version == expected:
        verdicts.add("loaded", "pass", expected=expected, found=version)
        return True
    reason, fix = f"{plan['module']} {version} runs instead of {expected}", FIX_REBOOT
    status, on_disk = run(["modinfo", "--basedir", str(root), "--field", "version", plan["module"]])
    if status == 0 and on_disk != expected:
        reason, fix = f"{reason}, and {on_disk or 'the kernel version'} is on the disk", FIX_DISK
    verdicts.add("loaded", "fail", expected=expected, found=version, reason=reason, fix=fix)
    return False


def existed_at_boot(root: Path) -> bool:
    """Return whether the role's file of module options existed when the host booted; False if unknown."""
    lines = (read(root / "proc/stat") or "").splitlines()
    boot_s = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
    path = root / OPTIONS_FILE
    return path.exists() and path.stat().st_mtime < boot_s


def check_options(verdicts: Verdicts, request: Mapping[str, Any], root: Path) -> None:
    """Compare module options with the kernel's values; an option that the kernel does not show is unknown."""
    container = request["facts"]["container"]
    for module, options in request["options"].items():
        for name, value in options.items():
            check, expected = f"option.{module}.{name}", TRUTH.get(str(value), str(value))
            found = read(root / "sys/module" / module / "parameters" / name)
            if container:
                verdicts.skip(check, f"the kernel belongs to the machine that runs this {container} container", expected=expected)
                continue
            if found is None:
                loaded = (root / "sys/module" / module).is_dir()
                reason = f"the kernel does not show {name} of {module}" if loaded else f"{module} is not loaded"
                verdicts.add(check, "unknown" if loaded else "skipped", expected=expected, reason=reason, fix=f"see `modinfo {module}`")
                continue
            same = TRUTH.get(found, found) == expected
            fix = FIX_NOT_TAKEN if existed_at_boot(root) else FIX_REBOOT
            reason = f"{name} of {module} is {found}, not {expected}"
            verdicts.add(check, "pass" if same else "fail", expected=expected, found=found, reason=reason, fix=fix)


def check_fabric_manager(verdicts: Verdicts, plan: Mapping[str, Any], run: Runner, *, loaded: bool) -> None:
    """Check that the fabric manager runs on hosts with NVSwitches; without it no program can use the GPUs."""
    check, unit = "fabric_manager", "nvidia-fabricmanager.service"
    if not plan["fabric"]:
        verdicts.skip(check, "this host has no NVSwitch")
        return
    if not loaded:
        verdicts.skip(check, "it starts with the driver: see gpu_driver.loaded", expected="active")
        return
    status, found = run(["systemctl", "is-active", unit])
    verdict = "pass" if found == "active" else "unknown" if status is None or found == "activating" else "fail"
    fix = f"apply the phase gpu, which installs it in the driver's version; read `journalctl --unit {unit}`"
    verdicts.add(check, verdict, expected="active", found=found, reason=f"{unit} is {found or 'not installed'}", fix=fix)


def check_toolkit(verdicts: Verdicts, plan: Mapping[str, Any], run: Runner) -> None:
    """Check that the program of the container toolkit runs, if the driver's packages include one."""
    names = [package["name"] for package in plan["packages"] if package["name"] in TOOLKITS]
    if not names:
        verdicts.skip("container_toolkit", "the inventory requests no container toolkit")
        return
    toolkit = names[0]
    status, output = run([TOOLKITS[toolkit], "--version"])
    first = (output.splitlines() or [""])[0]
    reason = f"{TOOLKITS[toolkit]} does not run: {first or status}"
    fix = f"apply the phase gpu, which installs {toolkit}"
    verdicts.add("container_toolkit", "fail" if status != 0 else "pass", expected=toolkit, found=first, reason=reason, fix=fix)


def check_rdma(verdicts: Verdicts, devices: Sequence[str], root: Path) -> None:
    """Check that every RDMA device has a verbs device for programs (kernel: Documentation/ABI/stable/sysfs-class-infiniband)."""
    if not devices:
        bound = sorted(path.name for path in (root / "sys/bus/pci/drivers/mlx5_core").glob("*:*"))
        if bound:
            reason = f"{bound[0]} uses the driver mlx5_core, but the host has no RDMA device"
            verdicts.add("rdma", "unknown", reason=reason, fix="run `modprobe mlx5_ib` if it is an RDMA device; check `rdma link`")
        else:
            verdicts.skip("rdma", "this host has no RDMA device")
        return
    opened = {read(path) for path in (root / "sys/class/infiniband_verbs").glob("uverbs*/ibdev")}
    closed = [name for name in devices if name not in opened]
    expected, found = ", ".join(devices), ", ".join(name for name in devices if name in opened)
    reason = f"no program can open {', '.join(closed)}: it has no verbs device"
    fix = "`modprobe ib_uverbs`; rdma-core loads it at boot"
    verdicts.add("rdma", "fail" if closed else "pass", expected=expected, found=found, reason=reason, fix=fix)


def verify(request: Mapping[str, Any], root: Path, run: Runner = run_program) -> Verdicts:
    """Return the verdicts of a host."""
    plan, verdicts = request["plan"], Verdicts("gpu_driver", request["host"])
    if plan["outcome"] in {"unknown", "refused"}:
        verdict = "unknown" if plan["outcome"] == "unknown" else "fail"
        verdicts.add("plan", verdict, reason=plan["reason"], fix=plan["fix"])
        return verdicts
    if plan["outcome"] == "skipped":
        verdicts.skip("loaded", plan["reason"])
    else:
        loaded = check_module(verdicts, plan, root, run)
        check_fabric_manager(verdicts, plan, run, loaded=loaded)
        check_toolkit(verdicts, plan, run)
        check_rdma(verdicts, request["facts"]["rdma_devices"], root)
    check_options(verdicts, request, root)
    return verdicts


def needs_reboot(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a reboot would fix one of the verdicts."""
    return any(record.get("fix") == FIX_REBOOT for record in records)


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
    if not module.params["report"]:  # an apply continues; the verification at its end reports the verdicts
        fails = bool(verdicts.failures())
        module.exit_json(changed=False, verdicts=verdicts.records, needs_reboot=needs_reboot(verdicts.records), fails=fails)
    verdicts.finish(module)


if __name__ == "__main__":
    main()
