"""The role `host_certificate`: an authority made once, certificates that clients believe, and when a new one is signed."""

from __future__ import annotations

import datetime as dt
import stat
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import _load, load_role_module

if TYPE_CHECKING:
    from pathlib import Path

ROLE = content.roles_dir() / "host_certificate"
plugin: Any = _load("host_certificate_action", ROLE / "action_plugins" / "host_certificate.py")
effects: Any = load_role_module("host_certificate", "host_certificate_effects")
NAMES = ("n1", "10.0.0.1", "fd00::1", "localhost")


def wish(host: str = "n1", names: tuple[str, ...] = NAMES, *, days: int = 365, before: int = 60) -> Any:
    """Return what a certificate must be."""
    return plugin.Wish(host, names, days, before)


def bring(folder: Path, asked: Any, *, look_only: bool = False) -> bool:
    """Have a certificate."""
    made: bool = plugin.bring(folder, "demo", asked, look_only=look_only)
    return made


def installed(folder: Path, host: str, place: Path) -> Path:
    """Put a host's files where the role puts them."""
    place.mkdir(exist_ok=True)
    for source, name in ((f"hosts/{host}.crt", "host.crt"), (f"hosts/{host}.key", "host.key"), ("ca.crt", "ca.crt")):
        (place / name).write_bytes((folder / source).read_bytes())
    return place


def verdicts(found: list[dict[str, Any]]) -> list[str]:
    """Return the verdicts."""
    return [one["verdict"] for one in found]


def test_a_client_that_knows_the_authority_believes_every_name(tmp_path: Path) -> None:
    """Names and addresses of both kinds; under another name it is not believed, and a client of another authority does not believe it."""
    ca, other = tmp_path / "ca", tmp_path / "other"
    bring(ca, wish())
    bring(other, wish())
    place = installed(ca, "n1", tmp_path / "tls")

    assert verdicts(effects.look("n1", place, list(NAMES), 30)) == ["pass"] * 5
    assert verdicts(effects.look("n1", place, ["n2"], 30)) == ["fail", "unknown"]
    (place / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    assert verdicts(effects.look("n1", place, ["n1"], 30)) == ["fail", "unknown"]


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    """The folder and every key of it."""
    bring(tmp_path / "ca", wish())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ca").rglob("*.key")}

    assert modes == {"ca.key": 0o600, "n1.key": 0o600}
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_the_second_run_signs_nothing(tmp_path: Path) -> None:
    """And a look changes nothing, neither before nor after."""
    ca = tmp_path / "ca"

    assert bring(ca, wish(), look_only=True)
    assert not ca.exists()
    assert bring(ca, wish())
    before = {path: path.read_bytes() for path in ca.rglob("*.*")}
    assert not bring(ca, wish())
    assert not bring(ca, wish(), look_only=True)
    assert {path: path.read_bytes() for path in ca.rglob("*.*")} == before


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (wish(names=("n1", "10.0.0.2")), "the host's names changed"),
        (wish(before=364), ""),
        (wish(before=366), "it runs out"),
    ],
)
def test_a_new_one_is_signed_where_names_changed_or_it_runs_out(tmp_path: Path, asked: Any, reason: str) -> None:
    """The authority stays the same, so that nobody has to be told."""
    ca = tmp_path / "ca"
    bring(ca, wish())
    authority = (ca / "ca.crt").read_bytes()
    now = dt.datetime.now(dt.UTC)

    assert plugin.needs_new(ca, plugin.load_authority(ca), asked, now) == reason
    assert bring(ca, asked) is bool(reason)
    assert (ca / "ca.crt").read_bytes() == authority


@pytest.mark.parametrize("left_out", ["ca.crt", "hosts/n1.crt", "hosts/n1.key"])
def test_a_run_that_was_killed_is_finished_by_the_next(tmp_path: Path, left_out: str) -> None:
    """Whatever file it had not written yet; the end is a certificate that is believed."""
    ca = tmp_path / "ca"
    bring(ca, wish())
    (ca / left_out).unlink()

    assert bring(ca, wish())
    assert verdicts(effects.look("n1", installed(ca, "n1", tmp_path / "tls"), ["n1"], 30)) == ["pass", "pass"]


@pytest.mark.parametrize("broken", ["ca.key", "ca.crt"])
def test_an_authority_that_cannot_be_read_is_not_replaced(tmp_path: Path, broken: str) -> None:
    """Another one would shut out every host that has the old one: somebody must decide."""
    ca = tmp_path / "ca"
    bring(ca, wish())
    (ca / broken).write_text("not PEM")

    with pytest.raises(ValueError, match="cannot be read"):
        bring(ca, wish())
    assert (ca / broken).read_text() == "not PEM"


def test_a_certificate_of_another_authority_is_signed_anew(tmp_path: Path) -> None:
    """As where the folder was put back from an old copy."""
    ca, other = tmp_path / "ca", tmp_path / "other"
    bring(ca, wish())
    bring(other, wish())
    for name in ("ca.key", "ca.crt"):
        (ca / name).write_bytes((other / name).read_bytes())

    assert bring(ca, wish())
    assert not bring(ca, wish())


def test_a_key_of_another_host_and_an_end_that_is_near_fail(tmp_path: Path) -> None:
    """The verification says which, with a fix."""
    ca = tmp_path / "ca"
    bring(ca, wish(days=10, before=5))
    bring(ca, wish("n2"))
    place = installed(ca, "n1", tmp_path / "tls")
    near = effects.look("n1", place, ["n1"], 30)
    (place / "host.key").write_bytes((ca / "hosts" / "n2.key").read_bytes())
    wrong = effects.look("n1", place, ["n1"], 1)

    assert verdicts(near) == ["pass", "fail"]
    assert "it runs out in" in near[1]["reason"]
    assert verdicts(wrong) == ["fail", "unknown"]
    assert all(one["fix"] for one in [*near[1:], *wrong])
