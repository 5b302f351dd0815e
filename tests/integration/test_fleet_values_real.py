"""Test routes with the real ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.fleet import ssh_config
from primus_bootstrap.fleet.messages import Target
from primus_bootstrap.fleet.ssh_config import route_of

if TYPE_CHECKING:
    from pathlib import Path


def test_route_follows_the_ssh_configuration(tmp_path: Path) -> None:
    """The program ssh resolves names, ports and users of the configuration file in the arguments."""
    config = tmp_path / "config"
    config.write_text("Host box\n  HostName 192.0.2.7\n  Port 2022\n  User joe\n")

    route = route_of(Target("box", "box", ssh_arguments=("-F", str(config))))

    assert (route.address, route.port, route.user, route.key_name) == ("192.0.2.7", 2022, "joe", "192.0.2.7")


def test_invalid_arguments_are_reported() -> None:
    """The error is ssh's message."""
    with pytest.raises(ValueError, match=r"(?i)bad configuration option: nosuch"):
        route_of(Target("box", "box", ssh_arguments=("-o", "NoSuch=1")))


def test_ssh_configuration_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `Match exec` that hangs gives an error for one host; the other hosts are reached."""
    monkeypatch.setattr(ssh_config, "_TIMEOUT_S", 1)
    config = tmp_path / "config"
    config.write_text('Match exec "sleep 600"\n  User joe\n')

    with pytest.raises(ValueError, match="`ssh -G box` did not end within 1 s: a `Match exec`"):
        route_of(Target("box", "box", ssh_arguments=("-F", str(config))))


def test_ssh_configuration_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    """A comment or name in another encoding is accepted."""
    config = tmp_path / "config"
    config.write_bytes(b"Host box\n  HostName 192.0.2.9\n  User jos\xe9\n")

    assert route_of(Target("box", "box", ssh_arguments=("-F", str(config)))).address == "192.0.2.9"
