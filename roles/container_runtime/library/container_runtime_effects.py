#!/usr/bin/python
"""Run containers as root and as people do, and see what they see: the Ansible module `container_runtime_effects`.

The image is made here of the host's own shell, so no registry and no network are needed; image and containers are gone at the end.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import pwd
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Runner = Callable[..., "tuple[int, str]"]

SCHEMA = "primus.verdict/1"
SOURCE = "roles/container_runtime/meta/argument_specs.yml"
IMAGE = "localhost/primus-verify:1"
PROGRAMS = ("/bin/sh", "/bin/ls", "/bin/sleep")
CALL_S = 120
PRINTED = "ran in a container"
# Not /tmp: another account could take the name first. Not /run: programs may not be executed there.
HOMES = "/var/lib/primus/verify"
MIB = 1 << 20


def run_program(argv: Sequence[str], *, account: str = "", data: bytes = b"", home: str = "") -> tuple[int, str]:
    """Run a program; return its status and output. A time-out is status 124, as timeout(1) says it.

    Args:
        argv: the program and its words.
        account: as whom it runs; by default root.
        data: its standard input.
        home: where the account's engine keeps images, in place of its home; settings are those of the account.
    """
    words: dict[str, Any] = {"env": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}, "cwd": "/"}
    words["env"]["PODMAN_IGNORE_CGROUPSV1_WARNING"] = "1"
    if account:
        entry = pwd.getpwnam(account)
        words["env"] |= {"HOME": entry.pw_dir, "USER": account, "LOGNAME": account}
        if Path(f"/run/user/{entry.pw_uid}").is_dir():
            words["env"]["XDG_RUNTIME_DIR"] = f"/run/user/{entry.pw_uid}"
        if home:
            words["env"] |= {"HOME": home, "XDG_CONFIG_HOME": f"{entry.pw_dir}/.config"}
            words["env"].setdefault("XDG_RUNTIME_DIR", home)
        words |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": os.getgrouplist(account, entry.pw_gid)}
    try:
        done = subprocess.run(
            argv, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=CALL_S, umask=0o022, **words
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {CALL_S} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode(errors="replace").strip()


def libraries_in(output: str) -> list[str]:
    """Return the files that ldd(1) names."""
    return re.findall(r"(?m)(?:=>\s+|^\s+)(/\S+)\s+\(0x", output)


def make_image(run: Runner) -> bytes:
    """Return an archive with the host's own shell, `ls` and `sleep`, and the libraries that they need."""
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


class Look:
    """The verification of one host; verdicts gather in `verdicts`."""

    def __init__(self, wanted: Mapping[str, Any], run: Runner = run_program) -> None:
        """Keep what is wanted and how to run programs."""
        self.wanted = wanted
        self.facts: Mapping[str, Any] = wanted["facts"]
        self.engine: str = wanted["engine"]
        self.run = run
        self.verdicts: list[dict[str, Any]] = []

    def judge(self, check: str, verdict: str, **evidence: str) -> None:
        """Record one verdict; evidence is expected and found, and reason and fix where it is no pass."""
        record = {
            "check": f"container_runtime.{check}",
            "host": self.wanted["host"],
            "verdict": verdict,
            "expected": "",
            "found": "",
            **evidence,
        }
        self.verdicts.append({**record, "source": SOURCE, "started": time.time(), "schema": SCHEMA})

    def compare(self, check: str, *, expected: str, found: str, fix: str) -> None:
        """Pass where both are equal, unknown where nothing was found, else fail."""
        if found == expected:
            self.judge(check, "pass", expected=expected, found=found)
            return
        reason = f"expected {expected}, found {found}" if found else "nobody could say"
        self.judge(check, "fail" if found else "unknown", expected=expected, found=found, reason=reason, fix=fix)

    def refused_to_root(self) -> str:
        """Say why this host lets root run no container; empty where it does."""
        if not self.facts["container"]:
            return ""
        lacks = [name for name in ("mknod", "net_admin") if not self.facts[name]]
        parts = [f"gives root no {', '.join(f'CAP_{name.upper()}' for name in lacks)}"] if lacks else []
        parts += [] if self.facts["cgroup_writable"] else ["has read-only control groups"]
        return f"this {self.facts['container']} container {' and '.join(parts)}, so root can run no container in it" if parts else ""


def look_at_root(look: Look, image: bytes) -> None:
    """Run a container as root, where this host lets root do it."""
    if reason := look.refused_to_root():
        look.judge("run", "skipped", expected=PRINTED, reason=reason)
        return
    look_at_run(look, "run", image, account="")


def look_at_people(look: Look, image: bytes) -> None:
    """Run a container as the first account that the inventory names; docker's socket is for root alone."""
    if look.engine != "podman":
        return
    accounts = look.wanted["accounts"]
    if not accounts:
        look.judge("run_without_root", "skipped", expected=PRINTED, reason="the inventory names no account that runs containers")
        return
    account = accounts[0]
    home = pwd.getpwnam(account).pw_dir
    if not Path(home).is_dir():
        reason = f"{account} has no home folder {home}, so podman has no place for its images"
        look.judge("run_without_root", "unknown", expected=PRINTED, reason=reason, fix="make or mount the home folder, then verify again")
        return
    with own_home(account) as folder:
        at_home = Look(look.wanted, lambda argv, **how: look.run(argv, **how, home=folder))
        look_at_run(at_home, "run_without_root", image, account=account)
        # It ends the process that holds the account's namespace open, which belongs to this folder.
        at_home.run([look.engine, "system", "migrate"], account=account)
    look.verdicts += at_home.verdicts


@contextlib.contextmanager
def own_home(account: str) -> Iterator[str]:
    """Give an account a folder for the images of this verification, and remove it: the account's own home stays as it is."""
    entry = pwd.getpwnam(account)
    Path(HOMES).mkdir(mode=0o711, parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{account}-", dir=HOMES)
    try:
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def look_at_run(look: Look, check: str, image: bytes, *, account: str) -> None:
    """Import the image, run it, look at devices and at the log's bound, and leave nothing behind."""
    imported, output = look.run([look.engine, "import", "-", IMAGE], account=account, data=image)
    who = account or "root"
    fix = f"as {who}, run `{look.engine} run --rm {IMAGE} /bin/sh -c 'echo x'` and read what it says; see docs/container-runtime.md"
    try:
        status, printed = (
            (imported, output)
            if imported
            else look.run([look.engine, "run", "--rm", "--network=host", IMAGE, "/bin/sh", "-c", f"echo {PRINTED}"], account=account)
        )
        found = PRINTED if status == 0 and PRINTED in printed.splitlines() else printed[-300:] or f"status {status}"
        verdict = "pass" if found == PRINTED else "unknown" if status == 124 else "fail"
        reason = {} if verdict == "pass" else {"reason": f"{who} cannot run a container: {found}", "fix": fix}
        look.judge(check, verdict, expected=PRINTED, found=found, **reason)
        if verdict == "pass":
            look_at_devices(look, check, account=account)
            look_at_log(look, check, account=account)
    finally:
        look.run([look.engine, "rmi", "--force", IMAGE], account=account)


def device_words(devices: Sequence[str], engine: str) -> tuple[list[str], list[str]]:
    """Return the engine's words for the host's GPUs and fabric (as primus-cli gives them), and the nodes to look for inside."""
    words, nodes = [], []
    if "/dev/kfd" in devices:
        words += ["--device=/dev/kfd", "--device=/dev/dri"]
        nodes += [node for node in devices if node == "/dev/kfd" or node.startswith("/dev/dri/")]
    if any(node.startswith("/dev/nvidia") for node in devices):
        words.append("--gpus=all" if engine == "docker" else "--device=nvidia.com/gpu=all")
        nodes += [node for node in devices if node.startswith("/dev/nvidia")]
    if any(node.startswith("/dev/infiniband/") for node in devices):
        words.append("--device=/dev/infiniband")
        nodes += [node for node in devices if node.startswith("/dev/infiniband/")]
    return words, nodes


def look_at_devices(look: Look, check: str, *, account: str) -> None:
    """See whether a container has the GPU's and the fabric's devices, and may open them."""
    words, nodes = device_words(look.facts["devices"], look.engine)
    if not nodes:
        look.judge(f"{check}.devices", "skipped", reason="this host has no devices of GPUs or of an RDMA fabric")
        return
    tests = "; ".join(f"test -r {node} && test -w {node} && echo {node}" for node in nodes)
    command = [look.engine, "run", "--rm", "--network=host", *words, IMAGE, "/bin/sh", "-c", f"{tests}; true"]
    status, printed = look.run(command, account=account)
    found = " ".join(line for line in printed.splitlines() if line in nodes) if status == 0 else printed[-300:]
    whose = account or "root"
    fix = f"see `ls -l {' '.join(nodes[:3])}` and the groups of {whose}; for NVIDIA `nvidia-ctk cdi list`; apply the phases gpu and runtime"
    look.compare(f"{check}.devices", expected=" ".join(nodes), found=found or "none", fix=fix)


def look_at_log(look: Look, check: str, *, account: str) -> None:
    """See which bound the log of a fresh container has, as the engine itself started it."""
    if look.engine == "docker":
        template = '{{ index .HostConfig.LogConfig.Config "max-size" }}'
        expected = f"{look.wanted['log_max_mib']}m"
        _, found = look.run(["docker", "create", IMAGE, "/bin/sh"], account=account)
        identifier = found.split()[-1] if found else ""
        _, found = look.run(["docker", "inspect", "--format", template, identifier], account=account)
    else:
        expected = str(look.wanted["log_max_mib"] * MIB)
        status, found = look.run(["podman", "run", "--detach", "--network=host", IMAGE, "/bin/sleep", "60"], account=account)
        identifier = found.split()[-1] if status == 0 and found else ""
        found = conmon_bound(identifier)
    if identifier:
        look.run([look.engine, "rm", "--force", identifier], account=account)
    fix = "apply the phase runtime again, and look for another file that sets it (containers.conf.d, ~/.config/containers, daemon.json)"
    look.compare(f"{check}.log_bound", expected=expected, found=found, fix=fix)


def conmon_bound(identifier: str, pattern: str = "/proc/[0-9]*/cmdline") -> str:
    """Return the bound, in bytes, that the process which writes a container's log was given; podman shows it nowhere else."""
    for path in glob.glob(pattern) if identifier else ():  # noqa: PTH207 (an absolute pattern, which Path.glob refuses)
        try:
            words = Path(path).read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if identifier in words and "--log-size-max" in words:
            return words[words.index("--log-size-max") + 1]
    return ""


def look_at_storage(look: Look) -> None:
    """Compare where the engine keeps root's images with the stated folder."""
    if not look.wanted["storage_dir"]:
        return
    template = {"podman": "{{.Store.GraphRoot}}", "docker": "{{.DockerRootDir}}"}[look.engine]
    status, found = look.run([look.engine, "info", "--format", template])
    fix = "apply the phase runtime; images of the former folder stay there"
    look.compare("storage_dir", expected=look.wanted["storage_dir"], found=found.splitlines()[-1] if status == 0 and found else "", fix=fix)


def look_at_daemon(look: Look) -> None:
    """Ask docker's daemon for an answer, before anything is run with it."""
    if look.engine == "docker":
        status, answer = look.run(["docker", "info", "--format", "{{.ServerVersion}}"])
        found = "answers" if status == 0 and answer else answer[-300:] or "no answer"
        look.compare("daemon", expected="answers", found=found, fix="see `journalctl -u docker -n 30`")


def look_at_docker_log(look: Look, image: bytes) -> None:
    """Where docker can make and not start containers, its log's bound is seen all the same."""
    if look.engine != "docker" or not look.refused_to_root():
        return
    look.run(["docker", "import", "-", IMAGE], data=image)
    look_at_log(look, "run", account="")
    look.run(["docker", "rmi", "--force", IMAGE])


def look_at_apptainer(look: Look, image: bytes) -> None:
    """Compare Apptainer's version, and run a program in a folder as its image, as the first account or as root."""
    version = look.wanted["apptainer_version"]
    if not version:
        return
    status, answer = look.run(["apptainer", "--version"])
    look.compare(
        "apptainer", expected=version, found=answer.split()[-1] if status == 0 and answer else "nothing", fix="apply the phase runtime"
    )
    if status:
        return
    account = next(iter(look.wanted["accounts"]), "")
    with tempfile.TemporaryDirectory(prefix="primus-apptainer-") as folder:
        Path(folder).chmod(0o755)
        with tarfile.open(fileobj=io.BytesIO(image)) as archive:
            archive.extractall(folder)  # noqa: S202 (made in this module)
        for name in ("proc", "sys", "dev", "tmp", "etc", "root", "home", "var/tmp"):
            Path(folder, name).mkdir(parents=True, exist_ok=True)
        status, printed = look.run(["apptainer", "exec", "--contain", folder, "/bin/sh", "-c", f"echo {PRINTED}"], account=account)
    found = PRINTED if PRINTED in printed.splitlines() else printed[-300:] or f"status {status}"
    fix = "run `apptainer exec` by hand and read what it says; people need unprivileged user namespaces (sysctl user.max_user_namespaces)"
    look.compare("apptainer.run", expected=PRINTED, found=found, fix=fix)


def main() -> None:
    """Read the arguments, look, and report verdicts."""
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
    look = Look(module.params)
    image = make_image(run_program)
    if look.engine != "none":
        look_at_daemon(look)
        look_at_storage(look)
        look_at_root(look, image)
        look_at_docker_log(look, image)
        look_at_people(look, image)
    look_at_apptainer(look, image)
    result = {"changed": False, "verdicts": look.verdicts, "stdout": json.dumps({"verdicts": look.verdicts})}
    failed = [f"{record['check']}: {record['reason']}. Fix: {record['fix']}" for record in look.verdicts if record["verdict"] == "fail"]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
