"""Role `host_certificate`: creates an authority, signs host certificates and renews them."""

from __future__ import annotations

import datetime as dt
import stat
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_file, load_role_module

if TYPE_CHECKING:
    from pathlib import Path

plugin: Any = load_file(content.plugins_dir() / "action" / "host_certificate.py", "host_certificate_action")
effects: Any = load_role_module("host_certificate", "host_certificate_effects")
NAMES = ("n1", "10.0.0.1", "fd00::1", "localhost")


def specified(host: str = "n1", names: tuple[str, ...] = NAMES, *, days: int = 365, before: int = 60) -> Any:
    """Return the specification of a certificate."""
    return plugin.CertificateRequest(host, names, days, before)


def ensure(folder: Path, specification: Any, *, check: bool = False) -> bool:
    """Create or renew a certificate."""
    created: bool = plugin.ensure_certificate(folder, "demo", specification, check=check)
    return created


def installed(folder: Path, host: str, place: Path) -> Path:
    """Write a host's files to the paths of the role."""
    place.mkdir(exist_ok=True)
    for source, name in ((f"hosts/{host}.crt", "host.crt"), (f"hosts/{host}.key", "host.key"), ("ca.crt", "ca.crt")):
        (place / name).write_bytes((folder / source).read_bytes())
    return place


def checked(place: Path, names: list[str], least_days: int = 30) -> list[dict[str, Any]]:
    """Return the records of the certificate in a folder."""
    verdicts = effects.Verdicts("host_certificate", "n1")
    effects.check_certificate(verdicts, place, names, least_days)
    return list(verdicts.records)


def outcomes(found: list[dict[str, Any]]) -> list[str]:
    """Return the verdicts."""
    return [one["verdict"] for one in found]


def test_clients_of_the_authority_accept_every_name(tmp_path: Path) -> None:
    """Covers names, IPv4 and IPv6. Other names, and clients of another authority, are rejected."""
    ca, other = tmp_path / "ca", tmp_path / "other"
    ensure(ca, specified())
    ensure(other, specified())
    place = installed(ca, "n1", tmp_path / "tls")

    assert outcomes(checked(place, list(NAMES))) == ["pass"] * 5
    assert outcomes(checked(place, ["n2"])) == ["fail", "unknown"]
    (place / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    assert outcomes(checked(place, ["n1"])) == ["fail", "unknown"]


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """Covers the folder and every key."""
    ensure(tmp_path / "ca", specified())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ca").rglob("*.key")}

    assert modes == {"ca.key": 0o600, "n1.key": 0o600}
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


def test_second_run_signs_nothing(tmp_path: Path) -> None:
    """Check mode changes nothing before or after."""
    ca = tmp_path / "ca"

    assert ensure(ca, specified(), check=True)
    assert not ca.exists()
    assert ensure(ca, specified())
    before = {path: path.read_bytes() for path in ca.rglob("*.*")}
    assert not ensure(ca, specified())
    assert not ensure(ca, specified(), check=True)
    assert {path: path.read_bytes() for path in ca.rglob("*.*")} == before


@pytest.mark.parametrize(
    ("specification", "reason"),
    [
        (specified(names=("n1", "10.0.0.2")), "the host's names changed"),
        (specified(before=364), ""),
        (specified(before=366), "it expires soon"),
    ],
)
def test_certificate_is_renewed_before_expiry_or_for_new_names(tmp_path: Path, specification: Any, reason: str) -> None:
    """The authority stays, so clients need no update."""
    ca = tmp_path / "ca"
    ensure(ca, specified())
    authority = (ca / "ca.crt").read_bytes()
    now = dt.datetime.now(dt.UTC)

    assert plugin.renewal_reason(ca, plugin.load_authority(ca), specification, now) == reason
    assert ensure(ca, specification) is bool(reason)
    assert (ca / "ca.crt").read_bytes() == authority


@pytest.mark.parametrize("left_out", ["ca.crt", "hosts/n1.crt", "hosts/n1.key"])
def test_next_run_completes_an_interrupted_one(tmp_path: Path, left_out: str) -> None:
    """Any file may be missing; the result is a valid certificate."""
    ca = tmp_path / "ca"
    ensure(ca, specified())
    (ca / left_out).unlink()

    assert ensure(ca, specified())
    assert outcomes(checked(installed(ca, "n1", tmp_path / "tls"), ["n1"])) == ["pass", "pass"]


@pytest.mark.parametrize("broken", ["ca.key", "ca.crt"])
def test_unreadable_authority_is_not_replaced(tmp_path: Path, broken: str) -> None:
    """A new one would lock out every host that trusts the old one."""
    ca = tmp_path / "ca"
    ensure(ca, specified())
    (ca / broken).write_text("not PEM")

    with pytest.raises(ValueError, match="cannot be read"):
        ensure(ca, specified())
    assert (ca / broken).read_text() == "not PEM"


def test_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    """This occurs if the folder was restored from an old copy."""
    ca, other = tmp_path / "ca", tmp_path / "other"
    ensure(ca, specified())
    ensure(other, specified())
    for name in ("ca.key", "ca.crt"):
        (ca / name).write_bytes((other / name).read_bytes())

    assert ensure(ca, specified())
    assert not ensure(ca, specified())


def test_foreign_key_and_imminent_expiry_fail(tmp_path: Path) -> None:
    """Each verdict has a fix."""
    ca = tmp_path / "ca"
    ensure(ca, specified(days=10, before=5))
    ensure(ca, specified("n2"))
    place = installed(ca, "n1", tmp_path / "tls")
    near = checked(place, ["n1"])
    (place / "host.key").write_bytes((ca / "hosts" / "n2.key").read_bytes())
    wrong = checked(place, ["n1"], 1)

    assert outcomes(near) == ["pass", "fail"]
    assert "it expires in" in near[1]["reason"]
    assert near[1]["unit"] == "days"
    assert outcomes(wrong) == ["fail", "unknown"]
    assert all(one["fix"] for one in [*near[1:], *wrong])
