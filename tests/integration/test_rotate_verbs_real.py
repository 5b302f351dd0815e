"""`secrets rotate` with an unknown secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from primus_bootstrap import content
from tests.command_line import run_primus
from tests.unit.test_rotate_verbs import LAB, PLAYBOOK


def test_an_unknown_secret_is_an_error_with_the_choices() -> None:
    """No host is contacted."""
    done = run_primus("secrets", "rotate", str(LAB), "reddis", "--yes")

    assert done.returncode == 3
    assert "fix: choose from: certificates, gateway, mariadb, monitoring, munge, redis, registry" in done.stderr


def test_the_playbook_fails_for_an_unknown_secret() -> None:
    """So it does without a secret."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(LAB), str(PLAYBOOK)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg())}
    runs = ([*argv, *more] for more in ([], ["-e", "secret=x"]))
    results = [subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False) for words in runs]

    assert ["Fix: -e secret=NAME with one of munge" in " ".join(done.stdout.split()) for done in results] == [True, True]
    assert [done.returncode for done in results] == [2, 2]
