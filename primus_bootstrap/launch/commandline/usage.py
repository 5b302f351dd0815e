"""The help texts of primus-cli, generated from the settings and tasks, and the verb `config show`."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.plugins.plugin_discovery import plugin_tasks, sources
from primus_bootstrap.launch.settings.layered_settings import in_schema_order, schema
from primus_bootstrap.launch.settings.parser import flags_of
from primus_bootstrap.launch.tasks import all_tasks, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from primus_bootstrap.launch.settings.layered_settings import Key, Setting, Settings
    from primus_bootstrap.launch.settings.parser import CommandLine
    from primus_bootstrap.launch.tasks import Task

_WIDTH = 110
_GENERAL = """\
primus-cli [--config FILE] [--output DIR] [--debug] [--dry-run] <runtime> [options] -- <task> [arguments]

  primus-cli direct -- train pretrain --config x.yaml              run on this machine
  primus-cli container --image IMAGE -- train pretrain ...         run in a container on this machine
  primus-cli slurm srun -N 8 -- train pretrain ...                 run on a Slurm cluster, now (srun) or queued (sbatch)
  primus-cli slurm srun -N 8 -- container --image IMAGE -- train pretrain ...

  primus-cli --replay RUN_FOLDER [--strict]      repeat a run from its snapshot
  primus-cli direct -- train pretrain --replay RUN_FOLDER [--strict]    the same, with the runtime that you name
  primus-cli snapshot diff A B                   print the differences between two runs
  primus-cli diagnose RUN_FOLDER                 print why a run ended
  primus-cli analyze topology [--visualize]      show GPUs, NICs, NUMA nodes, PCIe switches, links, racks and switches
  primus-cli preflight [--list] [--json]         check this machine; changes nothing
  primus-cli backend list|check|install [NAME]   environments of the training backends: Megatron-LM
  primus-cli config show [--origin] [--json]     print every setting and its origin
  primus-cli config convert FILE [--output FILE] convert an experiment file of AMD Primus; print what has no counterpart
  primus-cli recipe list|show|explain [--json]   print how models are trained: layout, batch, recompute, and why
  primus-cli estimate RECIPE [--gpus N] [--json] estimate memory and speed before a run; exit 3 if it does not fit
  primus-cli env show [--gpu MODEL] [--json]     print the variables of this host's profile, with reason and source
  primus-cli env export [--gpu MODEL]            print the same variables as lines for a shell
  primus-cli verify-env [--json]                 check that this host's profile is in effect
  primus-cli host-env [--check] [--json]         write this host's profile (as root); --check changes nothing
  primus-cli tasks [--plugin FILE]               print every task with its arguments, those of your plug-ins included
  primus-cli VERB --help                         print the options of one verb

--dry-run prints the plan with secrets masked and starts nothing.

Exit codes: 0 success, 2 wrong command line or settings, 3 the run is not possible on this machine, 4 a hook or patch stopped the run or a
preflight check did not pass, 75 stopped early with a complete checkpoint, 128 + n ended by signal n, otherwise the exit code of the rank
that failed first.
"""
# The help of each verb that has no parser of its own.
VERBS = {
    "analyze": """\
primus-cli analyze RUN_FOLDER... [--json]
primus-cli analyze topology [--visualize [FILE]] [--fabric FILE] [--recorded FILE] [--json] [--sysfs ROOT] [--node NAME]

Summarize runs, or show the topology of this node and of its fabric as a tree.
--visualize [FILE]  draw it; FILE ends in .svg or .html (default: topology-NODE.svg)
--fabric FILE       racks and switches: hosts.yaml, the JSON of `ansible-inventory --list`, or Slurm's topology.conf
                    (default: topology.conf of this node, if it has one)
--recorded FILE     show what --json has written, instead of this node
--sysfs ROOT        folder that contains sys/ and etc/; --node NAME names the node
""",
    "backend": """\
primus-cli backend list [--folder DIR] [--json]
primus-cli backend check [NAME] [--folder DIR] [--json]
primus-cli backend install NAME [--folder DIR] [--python PYTHON] [--torch-index URL] [--from DIR] [--json]

Environments of the training backends, one folder NAME-VERSION each. check ends with 3 if one is missing or was built from other packages.
--folder DIR        folder of the environments, on storage that all nodes share (default: the setting backend.folder)
--python PYTHON     Python that creates the environment; its torch is used if it has one, as in the images of AMD and NVIDIA
--torch-index URL   package index of torch for the GPUs of the nodes; without it, pip's own index
--from DIR          folder with all packages, for a machine without network
""",
    "config": """\
primus-cli config show [--origin] [--json]
primus-cli config convert FILE [--to backend|native] [--output FILE] [--json]

show prints every setting with its value, secrets masked. --origin adds the file, variable or flag that set it.
convert writes an experiment file of AMD Primus as a configuration of train pretrain or train posttrain, and prints what is kept and what
has no counterpart. Its framework becomes the backend; --to native uses the trainer of this project instead.
""",
    "diagnose": """\
primus-cli diagnose RUN_FOLDER... [--json]

Print why each run ended: the rank that failed first, the cause and the fix.
""",
    "env": """\
primus-cli env show [--gpu MODEL] [--json]
primus-cli env export [--gpu MODEL]

Print the variables of this host's profile: with reason and source (show), or as lines for a shell (export).
--gpu MODEL prints the profile of another GPU model.
""",
    "snapshot": """\
primus-cli snapshot diff RUN_FOLDER RUN_FOLDER [--json]

Print the differences between the snapshots of two runs. Exit code 0: no difference, 1: at least one difference.
""",
    "tasks": """\
primus-cli tasks [--plugin FILE]...

Print every task with a description and its arguments: the built-in ones, and those of ./primus_plugins, the setting direct.plugin and
--plugin, each a .py file or a folder.
""",
}
_SLURM = """\
primus-cli slurm [srun|sbatch] [Slurm's own options] -- [container [options] --] <task> [arguments]

All options before the first -- are passed to srun or sbatch unchanged. One launcher is started on each node, also with sbatch.
Settings (section slurm of a settings file):
"""


def text(line: CommandLine) -> str:
    """Return the help of a runtime, or the general help if the command line names none."""
    if line.runtime == "slurm":
        return _SLURM + "".join(f"  {key.name:10} {key.meaning}\n" for key in schema().values() if key.section == "slurm")
    if line.runtime:
        keys = {key.path: key for key in flags_of(line.runtime).values() if key.section != "main"}
        return f"primus-cli {line.runtime} [options] -- <task> [arguments]\n\n" + "".join(map(_option, keys.values()))
    return _GENERAL + "\nTasks:\n" + task_table()


def task_table(plugins: Sequence[Task] = ()) -> str:
    """Return every task with its description and arguments."""
    return table(all_tasks(plugins).values())


def print_tasks(words: Sequence[str], settings: Settings, cwd: Path) -> int:
    """Run `tasks`: print every task, those of plug-ins included; return the exit code.

    Raises:
        UsageError: An option is unknown, or a plug-in is wrong.
    """
    given = list(settings["direct.plugin"])
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name != "--plugin" or not (equals or rest):
            raise UsageError(f"tasks: unexpected {name}", fix="primus-cli tasks [--plugin FILE]...")
        given.append(value if equals else rest.pop(0))
    sys.stdout.write(task_table(plugin_tasks(sources(given, cwd))))
    return 0


def _flags(key: Key) -> list[str]:
    return [flag for flag in (*key.flags, key.on_flag, key.off_flag) if flag]


def _option(key: Key) -> str:
    value = "" if key.type == "bool" or key.on_flag else f" {'|'.join(key.choices) or key.name.upper()}"
    repeat = " Can be repeated." if key.type == "list" or key.takes == "environment" else ""
    value_text = ", ".join(key.default) if key.type == "list" else "on" if key.default is True else str(key.default)
    default = f" (default: {value_text})" if key.default not in ("", [], {}, False) else ""
    meaning = textwrap.fill(key.meaning + repeat + default, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {', '.join(_flags(key))}{value}\n{meaning}\n"


def config_show(words: Sequence[str], settings: Settings) -> int:
    """Run `config show`: print every setting, secrets masked; return the exit code."""
    options = set(words[1:])
    if words[:1] != ["show"] or options - {"--origin", "--json"}:
        raise UsageError(
            f"config: unknown verb or option: {' '.join(words) or '(none)'}",
            fix="primus-cli config show [--origin] [--json], or primus-cli config convert FILE",
        )
    items = in_schema_order(settings)
    if "--json" in options:
        sys.stdout.write(json.dumps({item.path: {"value": _masked(item), "origin": item.origin} for item in items}, indent=2) + "\n")
        return 0
    for item in items:
        origin = f"  # {item.origin}" if "--origin" in options else ""
        sys.stdout.write(f"{item.path}: {json.dumps(_masked(item))}{origin}\n")
    return 0


def _masked(item: Setting) -> object:
    if isinstance(item.value, dict):
        return masking.mask_environment({name: str(value) for name, value in item.value.items()})
    if isinstance(item.value, list):
        return list(masking.mask_words(item.value))
    return masking.mask_text(item.value) if isinstance(item.value, str) else item.value
