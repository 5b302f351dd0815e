"""Module `envoy_configuration` with the real Envoy."""

from __future__ import annotations

import socket
import stat
import time
from typing import Any

import pytest

from tests.unit.envoy_rig import configuration
from tests.unit.envoy_rig import envoy_program as envoy_program
from tests.unit.test_role_envoy_configuration import module
from tests.unit.test_role_envoy_configuration import running as running


@pytest.mark.timeout(300)
def test_envoy_loads_files_and_reports_an_occupied_port(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The occupied port is reported, and used as soon as it is free."""
    folder, admin, config = running
    monkeypatch.setattr(module.shutil, "chown", lambda *_: None)
    files = module.Folder(folder / "dynamic", "nobody")

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
