#!/usr/bin/python
"""Ansible module `airgap_effects`: verify that apt downloads a package from the bundle and uses no other source. Changes nothing.

It runs apt with temporary folders, which ansible.builtin.apt cannot do. If a command cannot run, the verdict is `unknown`.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S = 120
FIX = "check that this host reaches the hosts of the group airgap_mirror, then apply the phase baseline again"


def run(argv: Sequence[str], folder: str) -> tuple[int | None, str]:
    """Run a program in a folder; return its output and its exit code, None if it timed out or does not exist."""
    try:
        done = run_command(argv, cwd=folder, timeout_s=LIMIT_S)
    except OSError as error:
        return None, str(error)
    return done.code, done.stdout if done.code == 0 else done.stderr or done.stdout


def check_sources(verdicts: Verdicts, bundle_source: str, status: int | None, output: str) -> None:
    """Check the sources that apt lists."""
    expected = f"{bundle_source} and nothing else"
    if status != 0:
        verdicts.add("sources", "unknown", expected=expected, reason=f"apt did not list its sources: {output.strip()}", fix=FIX)
        return
    others = sorted({line for line in output.splitlines() if line and not line.startswith(bundle_source)})
    if others or bundle_source not in output:
        reason = f"apt uses {', '.join(others[:3])}" if others else "apt does not use the bundle"
        fix = "remove the file in /etc/apt/apt.conf.d that sets Dir::Etc, then apply the phase baseline again"
        verdicts.add("sources", "fail", expected=expected, found=" ".join(others[:3]), reason=reason, fix=fix)
        return
    verdicts.add("sources", "pass", expected=expected, found=bundle_source)


def smallest_package(index: str) -> dict[str, str]:
    """Return the fields of the smallest package of an index; empty if it has no packages."""
    stanzas = [dict(re.findall(r"(?m)^([A-Za-z0-9-]+): (.*)$", text)) for text in index.split("\n\n")]
    return min((one for one in stanzas if "Size" in one), key=lambda one: int(one["Size"]), default={})


def check_fetch(verdicts: Verdicts, package: dict[str, str], folder: Path, status: int | None, output: str) -> None:
    """Check the downloaded package."""
    expected = f"{package['Package']} {package['Version']} with the checksum of the index"
    files = list(folder.glob("*.deb"))
    if status is None:
        verdicts.add("fetch", "unknown", expected=expected, reason=output.strip(), fix=FIX)
    elif status != 0 or not files:
        verdicts.add("fetch", "fail", expected=expected, found="nothing", reason=output.strip()[-500:], fix=FIX)
    else:
        found = hashlib.sha256(files[0].read_bytes()).hexdigest()
        verdict = "pass" if found == package["SHA256"] else "fail"
        verdicts.add("fetch", verdict, expected=expected, found=files[0].name, reason=f"its checksum is {found}", fix=FIX)


def verify(verdicts: Verdicts, folder: str) -> None:
    """Check the sources and a download."""
    bundle_source = f"mirror+file:{folder}/mirrors"
    with tempfile.TemporaryDirectory(prefix="primus-airgap-") as folder_path:
        options = ["-o", f"Dir::State::lists={folder_path}/lists", "-o", f"Dir::Cache={folder_path}/cache", "-o", "APT::Sandbox::User=root"]
        for name in ("lists/partial", "cache/archives/partial", "here"):
            (Path(folder_path) / name).mkdir(parents=True)
        updated, error = run(["apt-get", "-qq", *options, "update"], folder_path)
        # apt lists only sources whose index it has.
        status, output = (
            run(["apt-get", *options, "indextargets", "--format", "$(REPO_URI)"], folder_path) if updated == 0 else (None, error)
        )
        check_sources(verdicts, bundle_source, status, output)
        package = smallest_package((Path(folder) / "Packages").read_text(encoding="utf-8"))
        if not package:
            reason = "the index of the bundle is empty"
            verdicts.add("fetch", "fail", expected="packages", found="none", reason=reason, fix="create the bundle again")
            return
        status, output = updated, error
        if updated == 0:
            status, output = run(
                ["apt-get", "-qq", *options, "download", f"{package['Package']}={package['Version']}"], f"{folder_path}/here"
            )
        check_fetch(verdicts, package, Path(folder_path) / "here", status, output)


def main() -> None:
    """Run the checks, and fail if one failed."""
    text = {"type": "str", "required": True}
    module = AnsibleModule(argument_spec={"host": text, "folder": text}, supports_check_mode=False)
    verdicts = Verdicts("airgap", module.params["host"])
    try:
        verify(verdicts, module.params["folder"])
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        verdicts.add("fetch", "unknown", expected="a package of the bundle", reason=reason, fix=FIX)
    verdicts.finish(module)


if __name__ == "__main__":
    main()
