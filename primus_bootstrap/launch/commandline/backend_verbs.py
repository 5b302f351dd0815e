"""The verbs `primus-cli backend list`, `check` and `install`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.backends import environments, install
from primus_bootstrap.launch.backends.registry import backend, backends
from primus_bootstrap.launch.detect.host_profile import found_gpus
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.settings.layered_settings import find_files, resolve, working_folder

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from primus_bootstrap.launch.backends.environments import Found

_NOT_INSTALLED = 3
_VERBS = ("list", "check", "install")


def main(words: Sequence[str]) -> int:
    """Run a verb; return the exit code: 0, or 3 if `check` finds an environment that is missing or of another list.

    Raises:
        PrimusError: A word is wrong, or the installation failed.
    """
    verb, *rest = words or ("",)
    if verb not in _VERBS:
        raise UsageError(f"backend: unknown verb: {verb or '(none)'}", fix=did_you_mean(verb, _VERBS))
    options = _parser(verb).parse(rest)
    settings = resolve(find_files(os.environ, working_folder()), os.environ)
    where = environments.folder(options.folder or settings["backend.folder"], os.environ)
    if verb == "install":
        return _install(options, where)
    found = [environments.find(item, where) for name, item in backends().items() if verb == "list" or options.name in ("", name)]
    if verb == "check" and options.name:
        backend(options.name)  # an unknown name is an error
    _print(found, as_json=options.json)
    return _NOT_INSTALLED if verb == "check" and any(item.state != environments.OK for item in found) else 0


def _parser(verb: str) -> OptionParser:
    parser = OptionParser(f"primus-cli backend {verb}", "Environments of the training backends.")
    parser.add_argument("--folder", default="", metavar="DIR", help="folder of the environments; default: the setting backend.folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    if verb == "install":
        parser.add_argument("name", help="name of the backend")
        parser.add_argument("--python", default="python3", help="Python that creates the environment; its torch is used if it has one")
        parser.add_argument("--torch-index", default="", metavar="URL", help="package index of torch for the GPUs of the nodes")
        gpus = "GPUs of the nodes; default: those of this host"
        parser.add_argument("--gpus", choices=("amd", "nvidia", "none"), default="", help=gpus)
        source = "folder with all packages, for a machine without network"
        parser.add_argument("--from", dest="source", default="", metavar="DIR", help=source)
    elif verb == "check":
        parser.add_argument("name", nargs="?", default="", help="name of a backend; default: all")
    return parser


def _install(options: Namespace, where: Path) -> int:
    vendor = options.gpus or found_gpus(Path("/")).vendor
    choices = install.Choices(options.python, options.torch_index, options.source, "" if vendor == "none" else vendor)
    found = install.install(backend(options.name), where, choices, _show)
    _print([found], as_json=options.json)
    return 0


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _print(found: Sequence[Found], *, as_json: bool) -> None:
    if as_json:
        rows = [{"backend": item.backend, "version": item.version, "path": str(item.path), "state": item.state} for item in found]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    for item in found:
        fix = "" if item.state == environments.OK else f"  fix: primus-cli backend install {item.backend} --folder {item.path.parent}"
        sys.stdout.write(f"{item.backend} {item.version}: {item.state}  {item.path}{fix}\n")
