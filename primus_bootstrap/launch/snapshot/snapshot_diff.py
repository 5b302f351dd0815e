"""What differs between two snapshots, or between a snapshot and what is here now: one line a difference, what matters first.

    primus-cli snapshot diff A B [--json]

Exit codes: 0 the same, 1 different, 2 one of them is no snapshot. Where both runs have results, those stand at the end.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.snapshot import run_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SAME, DIFFERENT = 0, 1
# Parts in the order in which they are shown: what a run was asked to do, what it was made of, where it ran.
COMMAND, SETTINGS, ENVIRONMENT, CODE, FILES, MACHINE, PACKAGES = (
    "command",
    "settings",
    "environment",
    "code",
    "files",
    "machine",
    "packages",
)
# Variables that belong to one start of one run, and say nothing about it.
_OF_ONE_START = frozenset(
    {"RUN_DIR", "PRIMUS_PLAN", "PRIMUS_NODE", "PRIMUS_COMMAND", "PRIMUS_REPLAY", "PRIMUS_REPLAY_STRICT", "PWD", "OLDPWD", "SHLVL", "_"}
)
_TRAINING_RESULTS = ("step", "loss", "tokens_per_s", "mfu", "step_time_s", "memory_peak_gib")


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same; None stands for `not there`."""

    part: str
    name: str
    first: Any
    second: Any

    def text(self) -> str:
        """Return it as one line."""
        return f"{self.part}: {self.name}: {_shown(self.first)} -> {_shown(self.second)}"


def main(words: Sequence[str]) -> int:
    """Print what differs between the snapshots of two runs.

    Raises:
        UsageError: One of them is no snapshot.
    """
    names = [word for word in words if word != "--json"]
    if len(names) != 2 or any(name.startswith("-") for name in names):
        raise UsageError("snapshot diff needs two run folders", fix="primus-cli snapshot diff A B [--json]")
    folders = [run_snapshot.find(Path(name)) for name in names]
    found = compare_folders(*folders)
    results = [_results(folder.parent) for folder in folders]
    if "--json" in words:
        data = {"differences": [asdict(item) for item in found], "results": results}
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        lines = [item.text() for item in found] or ["no difference"]
        sys.stdout.write("\n".join([*lines, *_result_lines(*results)]) + "\n")
    return DIFFERENT if found else SAME


def compare_folders(first: Path, second: Path) -> tuple[Difference, ...]:
    """Return what differs between two snapshots' folders; nodes are compared by their number."""
    runs = [run_snapshot.read(folder, run_snapshot.MAIN) for folder in (first, second)]
    found = [
        *compare_runs(under_old_names(runs[0], second, runs[1]), under_old_names(runs[1], first, runs[0])),
        *compare_environments(*(run_snapshot.read(folder, run_snapshot.ENVIRONMENT)["variables"] for folder in (first, second))),
    ]
    names = sorted({path.name for folder in (first, second) for path in folder.glob("machine-*.json")})
    for name in names:
        machines = [run_snapshot.read(folder, name) if (folder / name).is_file() else {} for folder in (first, second)]
        label = f"node {int(name[8:13])} " if len(names) > 1 else ""
        found += compare_machines(*machines, label=label)
    return _in_order(found)


def compare_runs(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return what differs in command, settings, files and code."""
    shape = ("nnodes", "nproc", "single", "rendezvous")
    commands = [
        {
            **{name: data.get(name) for name in ("task", "runtime", "primus_cli", "program", "program_arguments", "cwd")},
            **{name: data.get("topology", {}).get(name) for name in shape},
            **{f"{step['phase']} {Path(step['path']).name}": step["origin"] for step in (*data["hooks"], *data["patches"])},
        }
        for data in (first, second)
    ]
    values = [{path: item["value"] for path, item in data["settings"].items() if path != "main.output"} for data in (first, second)]
    return [*_differences(COMMAND, *commands), *_differences(SETTINGS, *values), *compare_code(first, second)]


def under_old_names(run: Mapping[str, Any], place: Path, original: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run in which the copies of a snapshot bear the names of the files that they stand in for, as its command had them.

    Args:
        run: A run that may be a replay.
        place: The folder of the snapshot that it may have been replayed from.
        original: The content of that snapshot.
    """
    names = {str((place / run_snapshot.FILES / item["copy"]).absolute()): item["path"] for item in original["files"] if item["copy"]}

    def old(word: str) -> str:
        start, equals, value = word.partition("=")
        for text, before in ((word, ""), (value, f"{start}{equals}")):
            if text in names:
                path, cwd = Path(names[text]), Path(original["cwd"])
                return before + str(path.relative_to(cwd) if cwd in path.parents else path)
        return word

    files = [{**item, "path": names.get(item["path"], item["path"])} for item in run["files"]]
    return {**run, "program_arguments": [old(word) for word in run["program_arguments"]], "files": files}


def compare_code(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return what differs in files and code."""
    files = [{item["path"]: item["sha256"] for item in data["files"]} for data in (first, second)]
    code = [
        {
            **{f"git commit of {item['root']}": item["commit"] for item in data["git"]},
            **{f"git changes of {item['root']}": item["patch_sha256"] or "none" for item in data["git"]},
            **{f"files of {item['folder']}": item["sha256"] for item in data["code"]},
        }
        for data in (first, second)
    ]
    return [*_differences(FILES, *files), *_differences(CODE, *code)]


def compare_environments(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """Return which variables differ; secrets are *** on both sides, and only whether they are there is compared."""
    kept = [{name: value for name, value in side.items() if name not in _OF_ONE_START} for side in (first, second)]
    return list(_differences(ENVIRONMENT, *kept))


def compare_machines(first: Mapping[str, Any], second: Mapping[str, Any], *, label: str = "") -> list[Difference]:
    """Return what differs between two machines; their names may."""
    plain = [
        {name: value for name, value in side.items() if name not in ("schema", "node", "node_rank", "python")} for side in (first, second)
    ]
    pythons = [dict(side.get("python") or {}) for side in (first, second)]
    packages = [python.pop("packages", {}) for python in pythons]
    return [
        *_differences(MACHINE, *plain, label=label),
        *_differences(MACHINE, *({f"python {name}": value for name, value in python.items()} for python in pythons), label=label),
        *_differences(PACKAGES, *packages, label=label),
    ]


def _differences(part: str, first: Mapping[str, Any], second: Mapping[str, Any], *, label: str = "") -> Iterator[Difference]:
    left, right = dict(_leaves(first)), dict(_leaves(second))
    for name in sorted(left.keys() | right.keys()):
        if left.get(name) != right.get(name):
            yield Difference(part, f"{label}{name}", left.get(name), right.get(name))


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested mappings as dotted names."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _in_order(found: Sequence[Difference]) -> tuple[Difference, ...]:
    parts = (COMMAND, SETTINGS, FILES, CODE, ENVIRONMENT, MACHINE, PACKAGES)
    return tuple(sorted(found, key=lambda item: parts.index(item.part)))


def _results(run_dir: Path) -> dict[str, Any]:
    """Return what the last line of a run's steps says, by name."""
    try:
        last = (run_dir / "steps.jsonl").read_text("utf-8").splitlines()[-1]
        data = json.loads(last)
        return {name: data[name] for name in _TRAINING_RESULTS if data.get(name) is not None}
    except (OSError, ValueError, IndexError, AttributeError, TypeError):
        return {}


def _result_lines(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name in _TRAINING_RESULTS:
        left, right = first.get(name), second.get(name)
        if left is not None and right is not None:
            share = f" ({(right - left) / left:+.1%})" if left and left != right else ""
            lines.append(f"result: last step: {name}: {left:g} -> {right:g}{share}")
    return lines


def _shown(value: Any) -> str:
    if value is None:
        return "(not there)"
    return value if isinstance(value, str) else json.dumps(value)
