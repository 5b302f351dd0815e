"""`secrets rotate`: which hosts a secret concerns, the order, and what is refused. Contacts no host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.cli.rotate_verbs import rotatable
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster

LAB = content.topologies_dir() / "lab/hosts.yaml"
PLAYBOOK = content.playbooks_dir() / "day2/rotate_secret.yml"


@pytest.mark.parametrize(
    ("secret", "hosts"),
    [
        ("munge", {"node1", "node2", "node3"}),
        ("redis", {"node1", "node2", "node3"}),
        ("mariadb", {"node1"}),
        ("registry", {"node1", "node2", "node3"}),
        ("gateway", {"node1"}),
        ("monitoring", {"node1", "node2", "node3"}),
        ("certificates", {"node1", "node2", "node3"}),
    ],
)
def test_a_secret_concerns_those_who_use_it(secret: str, hosts: set[str]) -> None:
    """Every secret that the verb knows has a playbook with these hosts."""
    assert set(make_plan(load_cluster(LAB), playbook=f"day2/rotate/{secret}.yml").hosts) == hosts


def test_verb_and_playbook_know_the_same_secrets() -> None:
    """The list in rotate_secret.yml is that of the files beside it."""
    stated = yaml.safe_load(PLAYBOOK.read_text())[0]["vars"]["_rotated"]

    assert sorted(stated) == list(rotatable())


def test_what_is_no_secret_is_refused_with_those_that_there_are() -> None:
    """Before any host is contacted."""
    argv = [sys.executable, "-m", "primus_bootstrap", "secrets", "rotate", str(LAB), "reddis", "--yes"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 3
    assert "fix: choose from: certificates, gateway, mariadb, monitoring, munge, redis, registry" in done.stderr


def test_the_playbook_alone_refuses_it_as_well() -> None:
    """Plain Ansible, with and without a word."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(LAB), str(PLAYBOOK)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg())}
    runs = ([*argv, *more] for more in ([], ["-e", "secret=x"]))
    said = [subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False) for words in runs]

    assert ["Fix: -e secret=NAME with one of munge" in " ".join(done.stdout.split()) for done in said] == [True, True]
    assert [done.returncode for done in said] == [2, 2]
