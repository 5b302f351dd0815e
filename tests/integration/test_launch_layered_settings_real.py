"""primus_bootstrap.launch.settings.layered_settings: the verb `config show`, and the role's check of primus-cli."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.launch.settings.layered_settings import schema
from tests.integration.launch_cli_rig import ROOT, User

if TYPE_CHECKING:
    from pathlib import Path


def test_config_show_prints_every_setting_with_its_origin(tmp_path: Path) -> None:
    """A secret in a settings file is masked."""
    user = User(tmp_path)
    (user.project / ".primus.yaml").write_text("direct:\n  grace: 7\n  env: {HF_TOKEN: abcdefgh, MODEL: small}\n")
    done = user.cli("config", "show", "--origin")
    as_json = json.loads(user.cli("config", "show", "--json").stdout)

    assert f"direct.grace: 7  # project {user.project / '.primus.yaml'}:2" in done.stdout.splitlines()
    assert as_json["direct.env"]["value"] == {"HF_TOKEN": "***", "MODEL": "small"}
    assert set(as_json) == set(schema())
    assert "abcdefgh" not in done.stdout + done.stderr


def test_a_missing_config_file_is_an_error(tmp_path: Path) -> None:
    """A mistyped --config must not run with defaults."""
    done = User(tmp_path).cli("--config", "nowhere.yaml", "config", "show")

    assert (done.returncode, done.stderr) == (
        2,
        "primus-cli: --config nowhere.yaml: file not found\n  fix: give the path of a YAML file\n",
    )


def test_the_check_of_the_role_does_not_depend_on_the_settings(tmp_path: Path) -> None:
    """The site's settings may name a virtual environment and hooks that are not installed yet."""
    (proof,) = yaml.safe_load((ROOT / "roles/primus_cli/tasks/verify.yml").read_text())
    tasks = proof["block"]
    (argv,) = [task["ansible.builtin.command"]["argv"] for task in tasks if task["name"] == "Run a program through primus-cli"]
    user = User(tmp_path)
    settings = "direct: {venv: /nowhere, python: /nowhere/bin/python, hooks: [/none], patch: [none.sh]}\n"
    (user.project / ".primus.yaml").write_text(settings)
    done = user.cli(*[word.replace("{{ __primus_cli_folder['path'] }}", str(tmp_path)) for word in argv[1:]])

    assert done.returncode == 0, done.stderr
    assert "ran through primus-cli" in done.stdout
