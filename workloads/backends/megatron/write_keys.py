"""Print the settings that this interpreter's megatron-core accepts, as launch/data/backends/megatron-<version>.json has them.

PYTHON_OF_THE_ENVIRONMENT workloads/backends/megatron/write_keys.py > primus_bootstrap/launch/data/backends/megatron-0.19.2.json
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.common import key_file
from workloads.backends.megatron.parser import known_keys
from workloads.backends.megatron.python_version import complete_typing

if __name__ == "__main__":
    complete_typing()
    sys.stdout.write(key_file.text(known_keys()))
