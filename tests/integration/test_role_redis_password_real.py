"""Password change of a running Redis, before the first run of the role."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from tests.unit.test_role_redis_password import module

if TYPE_CHECKING:
    from pathlib import Path

UTILITIES = [str(folder / "module_utils") for folder in (content.plugins_dir(), content.roles_dir() / "redis")]


@pytest.mark.parametrize(("check", "said"), [(True, ("changed", False)), (False, ("failed", True))])
@pytest.mark.parametrize("config", [None, "port 6379\n"])
def test_check_mode_before_the_first_run_finds_no_old_password(
    tmp_path: Path, config: str | None, *, check: bool, said: tuple[str, bool]
) -> None:
    """The role's files may be missing, or be the distribution's default. A real run fails then."""
    if config:
        (tmp_path / "redis.conf").write_text(config)
    paths = {"config": f"{tmp_path}/redis.conf", "client_env": f"{tmp_path}/client.env", "applied": f"{tmp_path}/applied"}
    given = json.dumps({"ANSIBLE_MODULE_ARGS": {"action": "remove_old_password", **paths, "_ansible_check_mode": check}})
    # Ansible puts shared code and that of the role beside its own.
    start = f"import ansible.module_utils as utils, runpy; utils.__path__.extend({UTILITIES!r})\n"
    start += f"runpy.run_path({module.__file__!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", start], input=given, capture_output=True, text=True, timeout=60, check=False)

    assert said in json.loads(done.stdout).items(), done.stdout + done.stderr
