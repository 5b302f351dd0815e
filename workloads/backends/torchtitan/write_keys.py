"""Print the settings that this interpreter's torchtitan accepts, as launch/data/backends/torchtitan-<version>.json has them.

PYTHON_OF_THE_ENVIRONMENT workloads/backends/torchtitan/write_keys.py > primus_bootstrap/launch/data/backends/torchtitan-0.2.2.json
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.common import key_file
from workloads.backends.torchtitan.parser import known_keys

if __name__ == "__main__":
    sys.stdout.write(key_file.text(known_keys()))
