"""Print the settings that this interpreter's megatron-core accepts, as launch/data/backends/megatron-<version>.json has them.

PYTHON_OF_THE_ENVIRONMENT workloads/backends/megatron/write_keys.py > primus_bootstrap/launch/data/backends/megatron-0.19.2.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.megatron.parser import known_keys
from workloads.backends.megatron.python_version import complete_typing


def text() -> str:
    """Return the content of the file, one setting per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in known_keys().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    complete_typing()
    sys.stdout.write(text())
