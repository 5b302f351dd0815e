"""The verb `config convert`: write an experiment file of AMD Primus as a configuration of train pretrain or train posttrain.

    primus-cli config convert FILE [--to backend|native] [--output FILE] [--json]

Exit codes: 0 converted, 2 the file is wrong, 3 its framework or its model has no counterpart.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.atomic_files import create_atomic
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.backends.registry import NATIVE
from primus_bootstrap.launch.primus_config.backend_conversion import convert_to_backend
from primus_bootstrap.launch.primus_config.conversion import convert
from primus_bootstrap.launch.primus_config.experiment import read_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.primus_config.conversion import Conversion


def main(words: Sequence[str]) -> int:
    """Convert a file; return the exit code.

    Without --output, the configuration is the standard output and the report is on stderr.

    Raises:
        PrimusError: The file cannot be converted, or the output exists.
    """
    options = _parser().parse_args(words)
    experiment = read_experiment(options.file, os.environ)
    secrets = masking.secret_values(experiment.variables)
    converted = convert(experiment) if options.to == NATIVE else convert_to_backend(experiment)
    text = masking.mask_text(configuration(converted, options.file), secrets)
    if options.output:
        _write(options.output, text)
    if options.json:
        sys.stdout.write(masking.mask_text(json.dumps(_document(converted, options), indent=2), secrets) + "\n")
        return 0
    if not options.output:
        sys.stdout.write(text)
    stream = sys.stdout if options.output else sys.stderr
    stream.write(masking.mask_text(report(converted, options.output), secrets))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="primus-cli config convert",
        description="Convert an experiment file of AMD Primus to a configuration of train pretrain or posttrain.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a YAML file with modules: and pre_trainer: or post_trainer:")
    parser.add_argument(
        "--to",
        choices=("backend", NATIVE),
        default="backend",
        help="backend: the file's framework trains here too (default); native: the trainer of this project",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the file to write; default: standard output, with the report on stderr"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: settings, kept, unchanged, no_counterpart, notes, command"
    )
    return parser


def configuration(converted: Conversion, source: Path) -> str:
    """Return the configuration as YAML."""
    data = {"about": f"converted from {source.name}, an experiment file of AMD Primus", **converted.settings()}
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=140))


def report(converted: Conversion, output: Path | None) -> str:
    """Return what is kept and what has no counterpart, and the next command."""
    lines = [f"kept: {_count(converted.kept)}"]
    lines += [f"  {item.name} -> {item.setting}: {_text(item.value)}" for item in converted.kept]
    lines.append(f"no counterpart: {_count(converted.dropped)}")
    lines += [f"  {item.name}: {_text(item.value)}  ({item.reason})" for item in converted.dropped]
    if converted.unchanged:
        lines.append(f"not needed, because they are not set or the trainer does the same: {', '.join(converted.unchanged)}")
    lines += [f"note: {note}" for note in converted.notes]
    if output:
        lines.append(f"next: {_command(converted, output)}")
    return "\n".join(lines) + "\n"


def _command(converted: Conversion, output: Path) -> str:
    return f"primus-cli direct -- {converted.task} --config {shlex.quote(str(output))}"


def _count(items: Sequence[object]) -> str:
    return f"{len(items)} setting{'' if len(items) == 1 else 's'}"


def _text(value: Any) -> str:
    return json.dumps(value, default=str)


def _document(converted: Conversion, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "file": str(options.file),
        "output": str(options.output) if options.output else None,
        "task": converted.task,
        "settings": converted.settings(),
        "kept": [asdict(item) for item in converted.kept],
        "unchanged": list(converted.unchanged),
        "no_counterpart": [asdict(item) for item in converted.dropped],
        "notes": list(converted.notes),
        "command": _command(converted, options.output) if options.output else None,
    }


def _write(path: Path, text: str) -> None:
    try:
        create_atomic(path, text)
    except FileExistsError as error:
        fix = f"give another name, or remove it: rm {shlex.quote(str(path))}"
        raise UsageError(f"--output {path}: the file exists", fix=fix) from error
    except OSError as error:
        fix = "give a file in a folder in which you may write"
        raise UsageError(f"--output {path}: cannot be written: {error.strerror}", fix=fix) from error
