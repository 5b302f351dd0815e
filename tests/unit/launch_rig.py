"""Machines for the tests of primus_bootstrap.launch: descriptions in tests/data/sysfs, expanded into folders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_bootstrap.launch.detect import host_env
from tests.unit.role_module import load_file

TREES = Path(__file__).resolve().parents[1] / "data" / "sysfs"
_EXPANDER = load_file(TREES / "expand.py", "sysfs_expand")
MACHINES = tuple(sorted(path.stem for path in TREES.glob("*.yml")))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run of host-env."""

    code: int
    output: dict[str, Any]
    out: Path

    @property
    def facts(self) -> dict[str, Any]:
        """The written gpu.json."""
        return dict(json.loads((self.out / "etc/primus/gpu.json").read_text()))

    def env(self, name: str) -> str:
        """The assignments of one file of env.d, without comments and empty lines."""
        lines = (self.out / "etc/primus/env.d" / name).read_text().splitlines()
        return "\n".join(line for line in lines if line and not line.startswith("#"))

    def ports(self) -> dict[str, str]:
        """Each RDMA port with `chosen` or the reason against it."""
        return {port["name"]: "chosen" if port["chosen"] else port["reason"] for port in self.facts["network"]["ports"]}

    def verdicts(self) -> dict[str, str]:
        """Each check with its verdict."""
        return {record["check"]: record["verdict"] for record in self.output["verdicts"]}


def expand(machine: str, root: Path) -> Path:
    """Expand a machine's description below a folder."""
    return Path(_EXPANDER.expand(TREES / f"{machine}.yml", root))


def damage(path: Path, how: str) -> None:
    """Damage one file or folder of a tree, as in the descriptions."""
    _EXPANDER.break_path(path, how)


def run(capsys: Any, sysfs: Path, out: Path, *arguments: str, **site: Any) -> Outcome:
    """Run host-env on a tree with the input of the role."""
    file = out.parent / f"{out.name}.site.json"
    file.write_text(json.dumps({"host": "gpu001", **site}))
    code = host_env.main(["--sysfs", str(sysfs), "--out", str(out), "--site", str(file), "--json", *arguments])
    return Outcome(code, json.loads(capsys.readouterr().out), out)
