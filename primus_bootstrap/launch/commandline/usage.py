"""The help of primus-cli, made from the settings and the tasks, and `config show`."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.commandline.layered_settings import schema, shown
from primus_bootstrap.launch.tasks import all_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.commandline.layered_settings import Key, Setting, Settings
    from primus_bootstrap.launch.commandline.parser import CommandLine

_WIDTH = 110
_GENERAL = """\
primus-cli [--config FILE] [--output DIR] [--debug] [--dry-run] <runtime> [options] -- <task> [arguments]

  primus-cli direct -- train pretrain --config x.yaml              on this machine
  primus-cli container --image IMAGE -- train pretrain ...         in an image, here
  primus-cli slurm srun -N 8 -- train pretrain ...                 on a cluster; sbatch the same
  primus-cli slurm srun -N 8 -- container --image IMAGE -- train pretrain ...

  primus-cli --replay RUN_FOLDER [--strict]      run a snapshot again
  primus-cli snapshot diff A B                   what differs between two runs
  primus-cli diagnose RUN_FOLDER                 why a run ended
  primus-cli preflight [--list] [--json]         look at this machine; change nothing
  primus-cli config show [--origin] [--json]     every setting, and where it comes from
  primus-cli env show [--gpu MODEL] [--json]     the variables of this host's profile, with reason and source
  primus-cli env export [--gpu MODEL]            the same as lines for a shell
  primus-cli verify-env [--json]                 check that this host's profile has its effect
  primus-cli host-env [--check] [--json]         write this host's profile (root); --check changes nothing
  primus-cli tasks                               every task with its arguments
  primus-cli VERB --help                         the options of one verb

--dry-run prints the plan, secrets masked, and does nothing else. Exit codes: 0 done, 2 words or settings wrong, 3 cannot be planned here,
4 a hook or patch stopped it or a check of preflight did not pass, 75 stopped early with a good checkpoint, 128 + n ended by signal n,
else the code of the first failed rank.
"""
# The help of the verbs that have no parser of their own; it also says which of them there are.
VERBS = {
    "config": """\
primus-cli config show [--origin] [--json]

Print every setting with its value, secrets masked. --origin: also the file, variable or flag that it comes from.
""",
    "diagnose": """\
primus-cli diagnose RUN_FOLDER... [--json]

Print why each run ended: the first failed rank, the cause, and what to do.
""",
    "env": """\
primus-cli env show [--gpu MODEL] [--json]
primus-cli env export [--gpu MODEL]

Print the environment variables of this host's profile with reason and source (show), or as lines for a shell (export).
--gpu MODEL: those of another GPU model.
""",
    "snapshot": """\
primus-cli snapshot diff RUN_FOLDER RUN_FOLDER [--json]

Print what differs between the snapshots of two runs. Exit code 0: nothing, 1: something.
""",
    "tasks": """\
primus-cli tasks

Print every task with its meaning and arguments.
""",
}
_SECTIONS = {"direct": ("direct",), "container": ("container", "direct")}
_SLURM = """\
primus-cli slurm [srun|sbatch] [Slurm's own options] -- [container [options] --] <task> [arguments]

Every option before the first -- is Slurm's and goes to it as it is. One launcher is started on each node, by sbatch as well.
Settings of the files (section slurm):
"""


def text(line: CommandLine) -> str:
    """Return the help of what the user asked about."""
    if line.runtime == "slurm":
        return _SLURM + "".join(f"  {key.name:10} {key.meaning}\n" for key in schema().values() if key.section == "slurm")
    if line.runtime:
        sections = _SECTIONS[line.runtime]
        keys = [key for section in sections for key in schema().values() if key.section == section]
        return f"primus-cli {line.runtime} [options] -- <task> [arguments]\n\n" + "".join(_option(key) for key in keys if _flags(key))
    return _GENERAL + "\nTasks:\n" + task_table()


def task_table() -> str:
    """Return every task with its meaning and arguments."""
    return "".join(f"  {task.name:16} {task.meaning}\n{'':19}{task.usage}\n" for task in all_tasks().values())


def _flags(key: Key) -> list[str]:
    return [flag for flag in (*key.flags, key.on_flag, key.off_flag) if flag]


def _option(key: Key) -> str:
    value = "" if key.type == "bool" or key.on_flag else f" {'|'.join(key.choices) or key.name.upper()}"
    default = "" if key.default in ("", [], {}, False) else f" (default: {key.default})"
    meaning = textwrap.fill(key.meaning + default, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {', '.join(_flags(key))}{value}\n{meaning}\n"


def config_show(words: Sequence[str], settings: Settings) -> int:
    """Print every setting, secrets masked; return the exit code."""
    options = set(words[1:])
    if words[:1] != ["show"] or options - {"--origin", "--json"}:
        raise UsageError(f"config: {' '.join(words) or '(no verb given)'}", fix="config show [--origin] [--json]")
    items = shown(settings)
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
