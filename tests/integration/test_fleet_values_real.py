"""What the fleet decides without a host: routes, pinned keys, clocks, answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.fleet import ssh_config
from primus_bootstrap.fleet.messages import Target
from primus_bootstrap.fleet.ssh_config import route_of

if TYPE_CHECKING:
    from pathlib import Path


def test_ssh_config_is_asked_of_ssh_itself(tmp_path: Path) -> None:
    """The real ssh resolves names, ports and users of a configuration file that the arguments name."""
    config = tmp_path / "config"
    config.write_text("Host box\n  HostName 192.0.2.7\n  Port 2022\n  User joe\n")

    route = route_of(Target("box", "box", ssh_arguments=("-F", str(config))))

    assert (route.address, route.port, route.user, route.key_name) == ("192.0.2.7", 2022, "joe", "192.0.2.7")


def test_what_ssh_does_not_accept_is_its_own_words() -> None:
    """A mistake in the arguments is shown as ssh says it."""
    with pytest.raises(ValueError, match=r"(?i)bad configuration option: nosuch"):
        route_of(Target("box", "box", ssh_arguments=("-o", "NoSuch=1")))


def test_a_configuration_of_ssh_that_hangs_is_an_answer_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Match exec` runs a program; where that hangs, one host gets an error and the others are asked."""
    monkeypatch.setattr(ssh_config, "_TIMEOUT_S", 1)
    config = tmp_path / "config"
    config.write_text('Match exec "sleep 600"\n  User joe\n')

    with pytest.raises(ValueError, match="ssh -G box gave no answer within 1 s: a `Match exec`"):
        route_of(Target("box", "box", ssh_arguments=("-F", str(config))))


def test_a_configuration_of_ssh_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    """A comment or a name in another encoding is no reason to fail."""
    config = tmp_path / "config"
    config.write_bytes(b"Host box\n  HostName 192.0.2.9\n  User jos\xe9\n")

    assert route_of(Target("box", "box", ssh_arguments=("-F", str(config)))).address == "192.0.2.9"
