"""Run a program of this package by name (`python3 launch.pyz NAME`); any other first word starts primus-cli."""

from __future__ import annotations

import importlib
import sys

# The module of each program. Only one is imported, because some programs start for every rank or every minute.
_PROGRAMS = {
    "host-env": "detect.host_env",
    "verify-env": "detect.verify_env",
    "rank": "ranks.rank",
    "bind": "detect.numa",
    "run-hook": "hooks.hook_runner",
    "run-plugin": "plugins.plugin_runner",
    "preflight": "checks.preflight_program",
    "watch": "watch.watch_program",
    "broker": "watch.broker",
    "unit": "watch.node_agent",
    "attempt": "watch.attempt",
}


def main() -> int:
    """Run the program that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in _PROGRAMS:
        return int(importlib.import_module(f"primus_bootstrap.launch.{_PROGRAMS[name]}").main(sys.argv[2:]))
    return int(importlib.import_module("primus_bootstrap.launch.commandline.main").main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
