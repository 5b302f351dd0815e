"""Runs the command line for `python -m primus_bootstrap`."""

from __future__ import annotations

from primus_bootstrap.cli.main import main

if __name__ == "__main__":
    main()
