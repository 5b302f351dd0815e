"""The programs of this package by name, for `python3 launch.pyz NAME` and `python3 -m primus_bootstrap.launch NAME`."""

from __future__ import annotations

import sys

from primus_bootstrap.launch import host_env, verify_env

_PROGRAMS = {"host-env": host_env.main, "verify-env": verify_env.main}


def main() -> int:
    """Run the program that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _PROGRAMS:
        sys.stderr.write(f"no such program: {name or '(none given)'}\n  fix: choose from: {', '.join(_PROGRAMS)}\n")
        return 2
    return _PROGRAMS[name](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
