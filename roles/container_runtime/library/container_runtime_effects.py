#!/usr/bin/python
"""Ansible module `container_runtime_effects`: run containers as root and as an account, and verify their devices and log limits.

The module builds the image from the host's own shell, so it needs no registry and no network, and removes image and containers at the end.
containers.podman has no such verification.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import pwd
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Runner = Callable[..., "tuple[int, str]"]

IMAGE = "localhost/primus-verify:1"
PROGRAMS = ("/bin/sh", "/bin/ls", "/bin/sleep")
CALL_S = 120
PRINTED = "ran in a container"
# Not /tmp: another account could create the folder first. Not /run: it is mounted noexec.
HOMES = "/var/lib/primus/verify"
MIB = 1 << 20


def run_program(argv: Sequence[str], *, account: str = "", data: bytes = b"", home: str = "") -> tuple[int, str]:
    """Run a program; return its exit code and output. After a timeout the exit code is 124, as with timeout(1).

    Args:
        argv: The program and its arguments.
        account: The account that runs it; empty = root.
        data: Its standard input.
        home: Folder for the images of the account's engine, instead of its home folder. The account's settings apply.
    """
    keywords: dict[str, Any] = {
        "env": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
        "cwd": "/",
    }
    keywords["env"]["PODMAN_IGNORE_CGROUPSV1_WARNING"] = "1"
    if account:
        entry = pwd.getpwnam(account)
        keywords["env"] |= {"HOME": entry.pw_dir, "USER": account, "LOGNAME": account}
        if Path(f"/run/user/{entry.pw_uid}").is_dir():
            keywords["env"]["XDG_RUNTIME_DIR"] = f"/run/user/{entry.pw_uid}"
        if home:
            keywords["env"] |= {"HOME": home, "XDG_CONFIG_HOME": f"{entry.pw_dir}/.config"}
            keywords["env"].setdefault("XDG_RUNTIME_DIR", home)
        keywords |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(account, entry.pw_gid)}
    try:
        done = subprocess.run(
            argv, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=CALL_S, umask=0o022, **keywords
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {CALL_S} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def libraries_in(output: str) -> list[str]:
    """Return the files in the output of ldd(1)."""
    return re.findall(r"(?m)(?:=>\s+|^\s+)(/\S+)\s+\(0x", output)


def make_image(run: Runner) -> bytes:
    """Return an archive with the host's own shell, `ls` and `sleep`, and their libraries."""
    files = set(PROGRAMS)
    for program in PROGRAMS:
        files |= set(libraries_in(run(["ldd", program])[1]))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in sorted(files):
            member = tarfile.TarInfo(path.lstrip("/"))
            content = Path(path).read_bytes()
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


class Verification:
    """The verification of one host; collects `verdicts`."""

    def __init__(self, options: Mapping[str, Any], run: Runner = run_program) -> None:
        """Store the module's options and how to run programs."""
        self.options = options
        self.facts: Mapping[str, Any] = options["facts"]
        self.engine: str = options["engine"]
        self.run = run
        self.verdicts = Verdicts("container_runtime", options["host"])

    def compare(self, check: str, *, expected: str, found: str, fix: str) -> None:
        """Record a pass if both are equal, unknown if nothing was found, else a fail."""
        if found == expected:
            self.verdicts.add(check, "pass", expected=expected, found=found)
            return
        reason = f"expected {expected}, found {found}" if found else "the command returned nothing"
        self.verdicts.add(check, "fail" if found else "unknown", expected=expected, found=found, reason=reason, fix=fix)

    def root_refusal(self) -> str:
        """Return why root cannot run containers on this host; empty if it can."""
        if not self.facts["container"]:
            return ""
        missing = [name for name in ("mknod", "net_admin") if not self.facts[name]]
        parts = [f"gives root no {', '.join(f'CAP_{name.upper()}' for name in missing)}"] if missing else []
        parts += [] if self.facts["cgroup_writable"] else ["has read-only control groups"]
        return f"this {self.facts['container']} container {' and '.join(parts)}, so root cannot run containers in it" if parts else ""


def check_root(verification: Verification, image: bytes) -> None:
    """Run a container as root, if this host allows it."""
    if reason := verification.root_refusal():
        verification.verdicts.add("run", "skipped", expected=PRINTED, reason=reason)
        return
    check_run(verification, "run", image, account="")


def check_rootless(verification: Verification, image: bytes) -> None:
    """Run a container as the first account of the inventory, with podman only: docker's socket belongs to root."""
    if verification.engine != "podman":
        return
    accounts = verification.options["accounts"]
    if not accounts:
        verification.verdicts.add("run_without_root", "skipped", expected=PRINTED, reason="container_runtime_accounts is empty")
        return
    account = accounts[0]
    home = pwd.getpwnam(account).pw_dir
    if not Path(home).is_dir():
        reason = f"{account} has no home folder {home}, which podman needs for its images"
        verification.verdicts.add(
            "run_without_root", "unknown", expected=PRINTED, reason=reason, fix="create or mount the home folder, then verify again"
        )
        return
    with temporary_home(account) as folder:
        at_temporary_home = Verification(verification.options, lambda argv, **how: verification.run(argv, **how, home=folder))
        at_temporary_home.verdicts = verification.verdicts
        check_run(at_temporary_home, "run_without_root", image, account=account)
        # Stops the process that holds the account's namespace open and uses this folder.
        at_temporary_home.run([verification.engine, "system", "migrate"], account=account)


@contextlib.contextmanager
def temporary_home(account: str) -> Iterator[str]:
    """Create a folder for an account's images and remove it at the end, so that the account's home folder stays unchanged."""
    entry = pwd.getpwnam(account)
    Path(HOMES).mkdir(mode=0o711, parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{account}-", dir=HOMES)
    try:
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_run(verification: Verification, check: str, image: bytes, *, account: str) -> None:
    """Import the image, run it, check devices and log limit, and remove the image."""
    imported, output = verification.run([verification.engine, "import", "-", IMAGE], account=account, data=image)
    who = account or "root"
    fix = f"as {who}, run `{verification.engine} run --rm {IMAGE} /bin/sh -c 'echo x'` and read its error; see docs/container-runtime.md"
    try:
        status, printed = (
            (imported, output)
            if imported
            else verification.run(
                [verification.engine, "run", "--rm", "--network=host", IMAGE, "/bin/sh", "-c", f"echo {PRINTED}"], account=account
            )
        )
        found = PRINTED if status == 0 and PRINTED in printed.splitlines() else printed[-300:] or f"exit code {status}"
        verdict = "pass" if found == PRINTED else "unknown" if status == 124 else "fail"
        reason = {} if verdict == "pass" else {"reason": f"{who} cannot run a container: {found}", "fix": fix}
        verification.verdicts.add(check, verdict, expected=PRINTED, found=found, **reason)
        if verdict == "pass":
            check_devices(verification, check, account=account)
            check_log(verification, check, account=account)
    finally:
        verification.run([verification.engine, "rmi", "--force", IMAGE], account=account)


def device_options(devices: Sequence[str], engine: str) -> tuple[list[str], list[str]]:
    """Return the engine's options for GPUs and RDMA devices, as primus-cli passes them, and the device nodes to check."""
    arguments, nodes = [], []
    if "/dev/kfd" in devices:
        arguments += ["--device=/dev/kfd", "--device=/dev/dri"]
        nodes += [node for node in devices if node == "/dev/kfd" or node.startswith("/dev/dri/")]
    if any(node.startswith("/dev/nvidia") for node in devices):
        arguments.append("--gpus=all" if engine == "docker" else "--device=nvidia.com/gpu=all")
        nodes += [node for node in devices if node.startswith("/dev/nvidia")]
    if any(node.startswith("/dev/infiniband/") for node in devices):
        arguments.append("--device=/dev/infiniband")
        nodes += [node for node in devices if node.startswith("/dev/infiniband/")]
    return arguments, nodes


def check_devices(verification: Verification, check: str, *, account: str) -> None:
    """Check that a container has the GPU and RDMA devices and can open them."""
    arguments, nodes = device_options(verification.facts["devices"], verification.engine)
    if not nodes:
        verification.verdicts.add(f"{check}.devices", "skipped", reason="this host has no GPU or RDMA devices")
        return
    tests = "; ".join(f"test -r {node} && test -w {node} && echo {node}" for node in nodes)
    command = [verification.engine, "run", "--rm", "--network=host", *arguments, IMAGE, "/bin/sh", "-c", f"{tests}; true"]
    status, printed = verification.run(command, account=account)
    found = " ".join(line for line in printed.splitlines() if line in nodes) if status == 0 else printed[-300:]
    who = account or "root"
    fix = f"compare `ls -l {' '.join(nodes[:3])}` with `id {who}` (NVIDIA: `nvidia-ctk cdi list`), then apply the phases gpu and runtime"
    verification.compare(f"{check}.devices", expected=" ".join(nodes), found=found or "none", fix=fix)


def check_log(verification: Verification, check: str, *, account: str) -> None:
    """Check the log limit of a new container."""
    if verification.engine == "docker":
        template = '{{ index .HostConfig.LogConfig.Config "max-size" }}'
        expected = f"{verification.options['log_max_mib']}m"
        _, found = verification.run(["docker", "create", IMAGE, "/bin/sh"], account=account)
        identifier = found.split()[-1] if found else ""
        _, found = verification.run(["docker", "inspect", "--format", template, identifier], account=account)
    else:
        expected = str(verification.options["log_max_mib"] * MIB)
        status, found = verification.run(["podman", "run", "--detach", "--network=host", IMAGE, "/bin/sleep", "60"], account=account)
        identifier = found.split()[-1] if status == 0 and found else ""
        found = conmon_bound(identifier)
    if identifier:
        verification.run([verification.engine, "rm", "--force", identifier], account=account)
    fix = "apply the phase runtime, and remove other files that set it (containers.conf.d, ~/.config/containers, daemon.json)"
    verification.compare(f"{check}.log_bound", expected=expected, found=found, fix=fix)


def conmon_bound(identifier: str, pattern: str = "/proc/[0-9]*/cmdline") -> str:
    """Return the log limit in bytes from the command line of the container's conmon process; podman shows it nowhere else."""
    for path in glob.glob(pattern) if identifier else ():  # noqa: PTH207 (an absolute pattern, which Path.glob refuses)
        try:
            arguments = Path(path).read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has ended
            continue
        if identifier in arguments and "--log-size-max" in arguments:
            return arguments[arguments.index("--log-size-max") + 1]
    return ""


def check_storage(verification: Verification) -> None:
    """Compare the engine's storage folder with container_runtime_storage_dir."""
    if not verification.options["storage_dir"]:
        return
    template = {"podman": "{{.Store.GraphRoot}}", "docker": "{{.DockerRootDir}}"}[verification.engine]
    status, found = verification.run([verification.engine, "info", "--format", template])
    fix = "apply the phase runtime; images in the former folder stay there"
    verification.compare(
        "storage_dir", expected=verification.options["storage_dir"], found=found.splitlines()[-1] if status == 0 and found else "", fix=fix
    )


def check_daemon(verification: Verification) -> None:
    """Check that docker's daemon answers."""
    if verification.engine == "docker":
        status, answer = verification.run(["docker", "info", "--format", "{{.ServerVersion}}"])
        found = "answers" if status == 0 and answer else answer[-300:] or "no answer"
        verification.compare("daemon", expected="answers", found=found, fix="read `journalctl -u docker -n 30`")


def check_docker_log(verification: Verification, image: bytes) -> None:
    """Check the log limit if docker can create but not start containers."""
    if verification.engine != "docker" or not verification.root_refusal():
        return
    verification.run(["docker", "import", "-", IMAGE], data=image)
    check_log(verification, "run", account="")
    verification.run(["docker", "rmi", "--force", IMAGE])


def check_apptainer(verification: Verification, image: bytes) -> None:
    """Check Apptainer's version, and run a program in a sandbox image as the first account or as root."""
    version = verification.options["apptainer_version"]
    if not version:
        return
    status, answer = verification.run(["apptainer", "--version"])
    verification.compare(
        "apptainer", expected=version, found=answer.split()[-1] if status == 0 and answer else "nothing", fix="apply the phase runtime"
    )
    if status:
        return
    account = next(iter(verification.options["accounts"]), "")
    with tempfile.TemporaryDirectory(prefix="primus-apptainer-") as folder:
        Path(folder).chmod(0o755)
        with tarfile.open(fileobj=io.BytesIO(image)) as archive:
            archive.extractall(folder)  # noqa: S202 (this module created the archive)
        for name in ("proc", "sys", "dev", "tmp", "etc", "root", "home", "var/tmp"):
            Path(folder, name).mkdir(parents=True, exist_ok=True)
        status, printed = verification.run(["apptainer", "exec", "--contain", folder, "/bin/sh", "-c", f"echo {PRINTED}"], account=account)
    found = PRINTED if PRINTED in printed.splitlines() else printed[-300:] or f"status {status}"
    fix = "run `apptainer exec` by hand and read its error; accounts need unprivileged user namespaces (sysctl user.max_user_namespaces)"
    verification.compare("apptainer.run", expected=PRINTED, found=found, fix=fix)


def main() -> None:
    """Run all checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "engine": {"type": "str", "required": True},
            "facts": {"type": "dict", "required": True},
            "accounts": {"type": "list", "elements": "str", "required": True},
            "log_max_mib": {"type": "int", "required": True},
            "storage_dir": {"type": "str", "required": True},
            "apptainer_version": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    verification = Verification(module.params)
    image = make_image(run_program)
    if verification.engine != "none":
        check_daemon(verification)
        check_storage(verification)
        check_root(verification, image)
        check_docker_log(verification, image)
        check_rootless(verification, image)
    check_apptainer(verification, image)
    verification.verdicts.finish(module)


if __name__ == "__main__":
    main()
