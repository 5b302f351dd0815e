"""Compare two snapshots, or a snapshot with the current state, and print one line per difference, then the results of both runs.

    primus-cli snapshot diff A B [--json]

Exit codes: 0 no difference, 1 differences, 2 a folder has no snapshot.
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
# The parts, in the order of the output.
PARTS = ("command", "settings", "files", "code", "environment", "machine", "packages")
COMMAND, SETTINGS, FILES, CODE, ENVIRONMENT, MACHINE, PACKAGES = PARTS
# Variables that differ in every run.
_PER_RUN = frozenset(
    {"RUN_DIR", "PRIMUS_PLAN", "PRIMUS_NODE", "PRIMUS_COMMAND", "PRIMUS_REPLAY", "PRIMUS_REPLAY_STRICT", "PWD", "OLDPWD", "SHLVL", "_"}
)
_TRAINING_RESULTS = ("step", "loss", "tokens_per_s", "mfu", "step_time_s", "memory_peak_gib")


@dataclass(frozen=True)
class Difference:
    """One difference; None means that the value does not exist."""

    part: str
    name: str
    first: Any
    second: Any

    def text(self) -> str:
        """Return it as one line."""
        return f"{self.part}: {self.name}: {_text(self.first)} -> {_text(self.second)}"


def main(words: Sequence[str]) -> int:
    """Print the differences between the snapshots of two runs.

    Raises:
        UsageError: A folder has no snapshot.
    """
    names = [word for word in words if word != "--json"]
    if len(names) != 2 or any(name.startswith("-") for name in names):
        raise UsageError("snapshot diff needs exactly two run folders", fix="primus-cli snapshot diff A B [--json]")
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
    """Return the differences between two snapshot folders; nodes are compared by number."""
    runs = [run_snapshot.read(folder, run_snapshot.MAIN) for folder in (first, second)]
    found = [
        *compare_runs(with_original_names(runs[0], second, runs[1]), with_original_names(runs[1], first, runs[0])),
        *compare_environments(*(run_snapshot.read(folder, run_snapshot.ENVIRONMENT)["variables"] for folder in (first, second))),
    ]
    names = sorted({path.name for folder in (first, second) for path in folder.glob("machine-*.json")})
    for name in names:
        machines = [run_snapshot.read(folder, name) if (folder / name).is_file() else {} for folder in (first, second)]
        label = f"node {int(name[8:13])} " if len(names) > 1 else ""
        found += compare_machines(*machines, label=label)
    return tuple(sorted(found, key=lambda item: PARTS.index(item.part)))


def compare_runs(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return the differences in command, settings, files and code."""
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


def with_original_names(run: Mapping[str, Any], snapshot: Path, original: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run with the paths of a snapshot's copies replaced by the paths of the original files.

    Args:
        run: A run that may be a replay.
        snapshot: The snapshot folder from which it may have been replayed.
    """
    names = {str((snapshot / run_snapshot.FILES / item["copy"]).absolute()): item["path"] for item in original["files"] if item["copy"]}

    def original_word(word: str) -> str:
        start, equals, value = word.partition("=")
        for text, before in ((word, ""), (value, f"{start}{equals}")):
            if text in names:
                path, cwd = Path(names[text]), Path(original["cwd"])
                return before + str(path.relative_to(cwd) if cwd in path.parents else path)
        return word

    words = {name: [original_word(word) for word in run[name]] for name in ("program", "program_arguments")}
    paths = {
        name: [{**item, "path": names.get(item["path"], item["path"])} for item in run[name]] for name in ("hooks", "patches", "files")
    }
    return {**run, **words, **paths}


def compare_code(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return the differences in files and code."""
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
    """Return the variables that differ. Secrets are *** in both environments, so only their existence is compared."""
    variables = [{name: value for name, value in side.items() if name not in _PER_RUN} for side in (first, second)]
    return list(_differences(ENVIRONMENT, *variables))


def compare_machines(first: Mapping[str, Any], second: Mapping[str, Any], *, label: str = "") -> list[Difference]:
    """Return the differences between two machines; their names are not compared."""
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


def _results(run_dir: Path) -> dict[str, Any]:
    """Return the results in the last line of a run's steps.jsonl, by name."""
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


def _text(value: Any) -> str:
    if value is None:
        return "(absent)"
    return value if isinstance(value, str) else json.dumps(value)
