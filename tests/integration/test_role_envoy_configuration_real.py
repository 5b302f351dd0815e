"""Module `envoy_configuration` with the real Envoy."""

from __future__ import annotations

import grp
import os
import socket
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.engine_rig import free_port
from tests.unit.envoy_rig import configuration, stated
from tests.unit.envoy_rig import envoy_program as envoy_program
from tests.unit.test_role_envoy_configuration import module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def running(tmp_path: Path, envoy_program: str) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Start the real Envoy with a small gateway; yield its folder, admin socket and configuration."""
    (tmp_path / "dynamic").mkdir()
    admin, port = str(tmp_path / "admin.sock"), free_port()
    values = stated(
        envoy_listeners=[{"name": "inner", "port": port, "tls": False, "address": "127.0.0.1"}],
        envoy_routes=[{"name": "site", "upstream": "web", "public": True}],
        envoy_jwt_providers=[],
    )
    config = configuration(tmp_path, values)
    (tmp_path / "bootstrap.json").write_text(config["bootstrap"].replace("/run/envoy/admin.sock", admin))
    for name, text in config["documents"].items():
        (tmp_path / "dynamic" / f"{name}.json").write_text(text)
    command = [envoy_program, "-c", str(tmp_path / "bootstrap.json"), "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield tmp_path, admin, {**config, "values": values}
        finally:
            process.terminate()


@pytest.mark.timeout(300)
def test_envoy_loads_files_and_reports_an_occupied_port(running: Any) -> None:
    """The occupied port is reported, and used as soon as it is free."""
    folder, admin, config = running
    files = module.Folder(folder / "dynamic", grp.getgrgid(os.getegid()).gr_name)

    def look() -> Any:
        return module.read_admin_page(admin, "/config_dump")

    versions = {name: module.version_of(text) for name, text in config["documents"].items()}
    assert module.read_admin_page(str(folder / "other.sock"), "/config_dump") is None
    assert module.wait_for_versions(versions, look, time.sleep) == []

    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        other = {
            **config["values"],
            "envoy_listeners": [{**config["values"]["envoy_listeners"][0], "name": "second", "port": squatter.getsockname()[1]}],
        }
        documents = configuration(folder, other)["documents"]
        problems = module.write_documents(files, documents, look, time.sleep)
    healed = module.write_documents(files, documents, look, time.sleep)

    assert stat.filemode((folder / "admin.sock").stat().st_mode) == "srw-------"
    assert module.read_admin_page(admin, "/quitquitquit") is None
    assert problems == [f"cannot bind '127.0.0.1:{other['envoy_listeners'][0]['port']}': Address already in use"]
    assert healed == []
