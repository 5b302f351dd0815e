#!/usr/bin/python
"""Fetch a package from the bundle as a role would, and look which sources apt knows: the Ansible module `airgap_effects`.

apt works in a folder of its own, which goes afterwards; what could not be found out is `unknown`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = "primus.verdict/1"
SOURCE = "roles/airgap/meta/argument_specs.yml"
LIMIT_S = 120
FIX = "see that the hosts of the group airgap_mirror answer from here, then apply the phase baseline again"


def run(argv: Sequence[str], folder: str) -> tuple[int | None, str]:
    """Run a program in a folder; return its exit status, None where it did not end in time or is not there, and what it said."""
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr or done.stdout


def record(host: str, check: str, verdict: str, **facts: Any) -> dict[str, Any]:
    """Return one verdict record."""
    return {
        "check": f"airgap.{check}",
        "host": host,
        "verdict": verdict,
        "source": SOURCE,
        "started": time.time(),
        "schema": SCHEMA,
        **facts,
    }


def judge_sources(host: str, ours: str, status: int | None, said: str) -> dict[str, Any]:
    """Judge what apt says of the places that it reads."""
    expected = f"{ours} and nothing else"
    if status != 0:
        return record(host, "sources", "unknown", expected=expected, found="", reason=f"apt did not say: {said.strip()}", fix=FIX)
    others = sorted({line for line in said.splitlines() if line and not line.startswith(ours)})
    if others or ours not in said:
        reason = f"apt reads {', '.join(others[:3])}" if others else "apt does not read the bundle"
        fix = "see what else in /etc/apt/apt.conf.d sets Dir::Etc, then apply the phase baseline again"
        return record(host, "sources", "fail", expected=expected, found=" ".join(others[:3]), reason=reason, fix=fix)
    return record(host, "sources", "pass", expected=expected, found=ours)


def smallest(index: str) -> dict[str, str]:
    """Return the fields of the smallest package of an index; empty where it holds none."""
    stanzas = [dict(re.findall(r"(?m)^([A-Za-z0-9-]+): (.*)$", text)) for text in index.split("\n\n")]
    return min((one for one in stanzas if "Size" in one), key=lambda one: int(one["Size"]), default={})


def judge_fetch(host: str, package: dict[str, str], folder: Path, status: int | None, said: str) -> dict[str, Any]:
    """Judge the package that apt was told to fetch."""
    expected = f"{package['Package']} {package['Version']} with the sum of the index"
    if status is None:
        return record(host, "fetch", "unknown", expected=expected, found="", reason=said.strip(), fix=FIX)
    files = list(folder.glob("*.deb"))
    if status != 0 or not files:
        return record(host, "fetch", "fail", expected=expected, found="nothing", reason=said.strip()[-500:], fix=FIX)
    found = hashlib.sha256(files[0].read_bytes()).hexdigest()
    verdict = "pass" if found == package["SHA256"] else "fail"
    reason = "" if verdict == "pass" else f"it has the sum {found}"
    return record(host, "fetch", verdict, expected=expected, found=files[0].name, reason=reason, fix="" if verdict == "pass" else FIX)


def look(host: str, folder: str) -> list[dict[str, Any]]:
    """Take both looks."""
    ours = f"mirror+file:{folder}/mirrors"
    with tempfile.TemporaryDirectory(prefix="primus-airgap-") as place:
        own = ["-o", f"Dir::State::lists={place}/lists", "-o", f"Dir::Cache={place}/cache", "-o", "APT::Sandbox::User=root"]
        for name in ("lists/partial", "cache/archives/partial", "here"):
            (Path(place) / name).mkdir(parents=True)
        updated, trouble = run(["apt-get", "-qq", *own, "update"], place)
        # apt names only places whose index it has.
        status, said = run(["apt-get", *own, "indextargets", "--format", "$(REPO_URI)"], place) if updated == 0 else (None, trouble)
        verdicts = [judge_sources(host, ours, status, said)]
        package = smallest((Path(folder) / "Packages").read_text(encoding="utf-8"))
        if not package:
            reason = "the index of the bundle is empty"
            return [
                *verdicts,
                record(host, "fetch", "fail", expected="packages", found="none", reason=reason, fix="create the bundle again"),
            ]
        status, said = updated, trouble
        if updated == 0:
            status, said = run(["apt-get", "-qq", *own, "download", f"{package['Package']}={package['Version']}"], f"{place}/here")
        return [*verdicts, judge_fetch(host, package, Path(place) / "here", status, said)]


def main() -> None:
    """Read the arguments, look, and fail where a look failed."""
    text = {"type": "str", "required": True}
    module = AnsibleModule(argument_spec={"host": text, "folder": text}, supports_check_mode=False)
    started = time.time()
    try:
        verdicts = look(module.params["host"], module.params["folder"])
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        verdicts = [record(module.params["host"], "fetch", "unknown", expected="a package of the bundle", found="", reason=reason, fix=FIX)]
    for verdict in verdicts:
        verdict["seconds"] = time.time() - started
    result = {"changed": False, "verdicts": verdicts, "stdout": json.dumps({"verdicts": verdicts})}
    if failed := [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in verdicts if one["verdict"] == "fail"]:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
