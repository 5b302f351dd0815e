"""Read this machine's own apt settings and turn them to another release: sources, keys, proxies, credentials, certificates."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.program import run

# Names a source may give the machine's release by instead of its code name.
_ALIASES = ("stable", "testing", "unstable", "sid")
_POCKETS = ("", "-updates", "-security", "/updates")
# What says how to reach the mirrors; the rest of apt's settings is about this machine, not about its network.
_WANTED = re.compile(
    r"(?i)^Acquire::((https?|ftp|tor)::(?!Proxy-Auto-Detect)|Check-Valid-Until|Check-Date|Retries|ForceIPv|Languages|AllowInsecure|AllowWeak)",
)
_DISTRIBUTION_KEYRING = re.compile(r"/(debian|ubuntu)-archive-")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
PROXY_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of apt's sources; `fields` keeps every other field as it is written."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()

    def field(self, name: str) -> str:
        """Return another field's text, empty where it is not set."""
        return next((value for key, value in self.fields if key.lower() == name.lower()), "")


@dataclass(frozen=True, slots=True)
class AptSettings:
    """What apt needs to work in a node as it works on this machine.

    `sources` are of this machine's release. `options` are lines of apt.conf. `files` are read where they lie and put at
    the same place (keys, client certificates, mirror lists); `secret_files` the same, with mode 0600.
    """

    codename: str
    sources: tuple[Source, ...]
    options: tuple[str, ...]
    files: tuple[Path, ...]
    secret_files: tuple[Path, ...]

    def sources_text(self, suite: str) -> str:
        """Return the sources of another release in deb822 form."""
        return "\n".join(_render(_turn(source, self.codename, suite)) for source in self.sources)

    def options_text(self) -> str:
        """Return the text of an apt.conf."""
        return "".join(f"{line}\n" for line in self.options)


def read_apt_settings(codename: str, *, root: Path = Path("/"), sudo: tuple[str, ...] = ()) -> AptSettings:
    """Read the settings of this machine, whose release is `codename`.

    Args:
        codename: The machine's release.
        root: Where `/etc/apt` is looked for; tests give a folder.
        sudo: What goes before a command that needs root.

    Raises:
        MachineError: No source of the distribution is configured.
    """
    etc = root / "etc/apt"
    entries = [entry for file in _source_files(etc) for entry in parse_sources(file.read_text(), one_line=file.suffix == ".list")]
    sources = _distribution_sources(entries, codename)
    if not sources:
        raise MachineError(
            f"no apt source for {codename} is configured on this machine",
            fix=f"write one into {etc}/sources.list.d, for example the distribution's mirror or your own, then run `apt-get update`",
        )
    dump = run(["apt-config", "dump"], timeout_s=30).out.splitlines()
    options = tuple(line for line in dump if _WANTED.match(line) and not line.endswith((' "";', ' "0";'))) + _proxy_options(dump)
    named = [Path(value) for line in options for value in re.findall(r'"(/[^"]+)"', line)]
    signed_by = [Path(word) for source in sources for word in source.field("Signed-By").split() if word.startswith("/")]
    mirrors = [Path(uri.partition(":")[2].replace("//", "")) for source in sources for uri in source.uris if uri.startswith("mirror+file:")]
    trusted = [] if all(source.field("Signed-By") for source in sources) else _extra_keys(etc)
    files = tuple(dict.fromkeys(path for path in [*named, *signed_by, *mirrors, *trusted] if _is_file(path, sudo)))
    secrets = [etc / "auth.conf", *sorted((etc / "auth.conf.d").glob("*.conf"))]
    return AptSettings(codename, sources, options, files, tuple(path for path in secrets if _is_file(path, sudo)))


def parse_sources(text: str, *, one_line: bool) -> list[Source]:
    """Read the text of a `.list` (one line an entry) or a `.sources` file (deb822); entries that are off or `deb-src` are left out."""
    return _parse_lines(text) if one_line else _parse_deb822(text)


def proxy_environment(subnet: str) -> dict[str, str]:
    """Return the proxy variables of this process, the lab's own network taken out of the proxy's hands."""
    found = {name: os.environ[name] for name in PROXY_NAMES if os.environ.get(name)}
    if any(name.lower() != "no_proxy" for name in found):
        for name in ("no_proxy", "NO_PROXY"):
            found[name] = ",".join(part for part in (found.get(name, ""), "localhost,127.0.0.1", subnet) if part)
    return found


def certificate_bundle(path: Path = Path("/etc/ssl/certs/ca-certificates.crt")) -> bytes:
    """Return the certificates that this machine trusts, empty where it keeps none there."""
    return path.read_bytes() if path.is_file() else b""


def own_certificates(bundle: bytes, shipped: Path = Path("/usr/share/ca-certificates")) -> tuple[str, ...]:
    """Return the certificates of the bundle that the distribution did not ship: a company's own authority."""
    known = {_squeeze(found) for file in shipped.rglob("*.crt") for found in _CERTIFICATE.findall(file.read_text(errors="replace"))}
    return tuple(found for found in _CERTIFICATE.findall(bundle.decode(errors="replace")) if _squeeze(found) not in known)


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _source_files(etc: Path) -> list[Path]:
    parts = etc / "sources.list.d"
    found = [etc / "sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]
    return [file for file in found if file.is_file()]


def _parse_lines(text: str) -> list[Source]:
    entries = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        match = re.fullmatch(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)(?:\s+(.*))?", line)
        if match:
            options, uri, suite, components = match.groups()
            pairs = [pair.partition("=") for pair in (options or "").split()]
            fields = tuple((_FIELD_NAMES.get(key.lower(), key), value.replace(",", " ")) for key, _, value in pairs)
            entries.append(Source((uri,), (suite,), tuple((components or "").split()), fields))
    return entries


# deb822's names of the options of one-line entries: sources.list(5).
_FIELD_NAMES = {"arch": "Architectures", "lang": "Languages", "signed-by": "Signed-By", "trusted": "Trusted"}


def _parse_deb822(text: str) -> list[Source]:
    entries = []
    for stanza in re.split(r"\n\s*\n", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        fields: dict[str, str] = {}
        for line in stanza.splitlines():
            if line[:1].isspace() and fields:
                fields[next(reversed(fields))] += f"\n{line}"
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
        taken = {name.lower(): value for name, value in fields.items()}
        if "deb" in taken.get("types", "").split() and taken.get("enabled", "yes").lower() not in ("no", "false", "0"):
            rest = tuple(pair for pair in fields.items() if pair[0].lower() not in ("types", "uris", "suites", "components", "enabled"))
            uris, suites, components = (tuple(taken.get(name, "").split()) for name in ("uris", "suites", "components"))
            entries.append(Source(uris, suites, components, rest))
    return entries


def _distribution_sources(entries: list[Source], codename: str) -> tuple[Source, ...]:
    wanted = {name + pocket for name in (codename, *_ALIASES) for pocket in _POCKETS}
    found = []
    for entry in entries:
        suites = tuple(suite for suite in entry.suites if suite.rstrip("/") in wanted)
        uris = tuple(uri for uri in entry.uris if not uri.startswith(("file:", "copy:", "cdrom:")))
        if suites and uris and "main" in entry.components:
            found.append(replace(entry, suites=suites, uris=uris))
    # Other vendors use the release's name as well, always with a key of their own.
    official = [entry for entry in found if not entry.field("Signed-By") or _DISTRIBUTION_KEYRING.search(entry.field("Signed-By"))]
    return tuple(official or found)


def _turn(source: Source, codename: str, suite: str) -> Source:
    names = (codename, *_ALIASES)
    turned = (re.sub(rf"^({'|'.join(names)})(?=$|[-/])", suite, old) for old in source.suites)
    return replace(source, suites=tuple(dict.fromkeys(turned)))


def _render(source: Source) -> str:
    head = {"Types": "deb", "URIs": " ".join(source.uris), "Suites": " ".join(source.suites), "Components": " ".join(source.components)}
    return "".join(f"{name}: {value}\n" for name, value in [*head.items(), *source.fields])


def _proxy_options(dump: list[str]) -> tuple[str, ...]:
    """Return the environment's proxies in apt's words, where apt has none of its own: nodes do not see the environment."""
    found = []
    for scheme in ("http", "https"):
        value = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        if value and not any(re.match(rf'(?i)Acquire::{scheme}::Proxy "[^"]', line) for line in dump):
            found.append(f'Acquire::{scheme}::Proxy "{value}";')
    return tuple(found)


def _extra_keys(etc: Path) -> list[Path]:
    return [key for key in sorted((etc / "trusted.gpg.d").glob("*")) if not _DISTRIBUTION_KEYRING.search(str(key))]


def _is_file(path: Path, sudo: tuple[str, ...]) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return run([*sudo, "test", "-f", str(path)], timeout_s=10, check=False).code == 0
