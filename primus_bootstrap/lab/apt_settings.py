"""Read this machine's apt settings and adapt them to another release: sources, keys, proxies, credentials, certificates."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import MachineError

# A source may name the machine's release by one of these instead of its code name.
_ALIASES = ("stable", "testing", "unstable", "sid")
_POCKETS = ("", "-updates", "-security", "/updates")
# The options for reaching mirrors. The other options of apt concern this machine only.
_NETWORK_OPTION = re.compile(
    r"(?i)^Acquire::((https?|ftp|tor)::(?!Proxy-Auto-Detect)|Check-Valid-Until|Check-Date|Retries|ForceIPv|Languages|AllowInsecure|AllowWeak)",
)
_DISTRIBUTION_KEYRING = re.compile(r"/(debian|ubuntu)-archive-")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
PROXY_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class AptSource:
    """One entry of apt's sources. `fields` holds the other fields unchanged."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()

    def field(self, name: str) -> str:
        """Return the text of another field, or an empty string if it is not set."""
        return next((value for key, value in self.fields if key.lower() == name.lower()), "")


@dataclass(frozen=True, slots=True)
class AptSettings:
    """The settings with which apt works in a node as it does on this machine.

    `sources` are those of this machine's release. `options` are lines of apt.conf. `files` (keys, client certificates, mirror
    lists) are copied to the same path in the node, `secret_files` with mode 0600.
    """

    codename: str
    sources: tuple[AptSource, ...]
    options: tuple[str, ...]
    files: tuple[Path, ...]
    secret_files: tuple[Path, ...]

    def sources_text(self, suite: str) -> str:
        """Return the sources for another release in deb822 format."""
        return "\n".join(_render(_for_release(source, self.codename, suite)) for source in self.sources)

    def options_text(self) -> str:
        """Return the text of apt.conf."""
        return "".join(f"{line}\n" for line in self.options)


def read_apt_settings(codename: str, *, root: Path = Path("/"), sudo: tuple[str, ...] = ()) -> AptSettings:
    """Read the apt settings of this machine.

    Args:
        codename: The machine's release.
        root: The folder that contains `etc/apt`.
        sudo: The prefix of a command that needs root.

    Raises:
        MachineError: No source for this release is configured.
    """
    etc = root / "etc/apt"
    entries = [entry for file in _source_files(etc) for entry in parse_sources(file.read_text(), one_line=file.suffix == ".list")]
    sources = _distribution_sources(entries, codename)
    if not sources:
        raise MachineError(
            f"no apt source for {codename} is configured on this machine",
            fix=f"add the distribution's mirror, or your own, to {etc}/sources.list.d, then run `apt-get update`",
        )
    dump = run(["apt-config", "dump"], timeout_s=30).stdout.splitlines()
    options = tuple(line for line in dump if _NETWORK_OPTION.match(line) and not line.endswith((' "";', ' "0";'))) + _proxy_options(dump)
    referenced = [Path(value) for line in options for value in re.findall(r'"(/[^"]+)"', line)]
    signed_by = [Path(word) for source in sources for word in source.field("Signed-By").split() if word.startswith("/")]
    mirrors = [Path(uri.partition(":")[2].replace("//", "")) for source in sources for uri in source.uris if uri.startswith("mirror+file:")]
    trusted = [] if all(source.field("Signed-By") for source in sources) else _extra_keys(etc)
    files = tuple(dict.fromkeys(path for path in [*referenced, *signed_by, *mirrors, *trusted] if _is_file(path, sudo)))
    secrets = [etc / "auth.conf", *sorted((etc / "auth.conf.d").glob("*.conf"))]
    return AptSettings(codename, sources, options, files, tuple(path for path in secrets if _is_file(path, sudo)))


def parse_sources(text: str, *, one_line: bool) -> list[AptSource]:
    """Parse a `.list` file (one line per entry) or a `.sources` file (deb822), without disabled and `deb-src` entries."""
    return _parse_lines(text) if one_line else _parse_deb822(text)


def proxy_environment(subnet: str) -> dict[str, str]:
    """Return the proxy variables of this process, with the lab's network added to `no_proxy`."""
    variables = {name: os.environ[name] for name in PROXY_NAMES if os.environ.get(name)}
    if any(name.lower() != "no_proxy" for name in variables):
        for name in ("no_proxy", "NO_PROXY"):
            variables[name] = ",".join(part for part in (variables.get(name, ""), "localhost,127.0.0.1", subnet) if part)
    return variables


def certificate_bundle(path: Path = Path("/etc/ssl/certs/ca-certificates.crt")) -> bytes:
    """Return the certificates that this machine trusts, or nothing if the file does not exist."""
    return path.read_bytes() if path.is_file() else b""


def local_certificates(bundle: bytes, shipped: Path = Path("/usr/share/ca-certificates")) -> tuple[str, ...]:
    """Return the certificates of the bundle that are not part of the distribution, for example a company's own authority."""
    standard = {_no_spaces(text) for file in shipped.rglob("*.crt") for text in _CERTIFICATE.findall(file.read_text(errors="replace"))}
    return tuple(text for text in _CERTIFICATE.findall(bundle.decode(errors="replace")) if _no_spaces(text) not in standard)


def _no_spaces(text: str) -> str:
    return "".join(text.split())


def _source_files(etc: Path) -> list[Path]:
    parts = etc / "sources.list.d"
    files = [etc / "sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]
    return [file for file in files if file.is_file()]


def _parse_lines(text: str) -> list[AptSource]:
    entries = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        match = re.fullmatch(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)(?:\s+(.*))?", line)
        if match:
            options, uri, suite, components = match.groups()
            pairs = [pair.partition("=") for pair in (options or "").split()]
            fields = tuple((_FIELD_NAMES.get(key.lower(), key), value.replace(",", " ")) for key, _, value in pairs)
            entries.append(AptSource((uri,), (suite,), tuple((components or "").split()), fields))
    return entries


# The deb822 field of each option of a one-line entry: sources.list(5).
_FIELD_NAMES = {"arch": "Architectures", "lang": "Languages", "signed-by": "Signed-By", "trusted": "Trusted"}


def _parse_deb822(text: str) -> list[AptSource]:
    entries = []
    for stanza in re.split(r"\n\s*\n", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        fields: dict[str, str] = {}
        for line in stanza.splitlines():
            if line[:1].isspace() and fields:
                fields[next(reversed(fields))] += f"\n{line}"
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
        lower = {name.lower(): value for name, value in fields.items()}
        if "deb" in lower.get("types", "").split() and lower.get("enabled", "yes").lower() not in ("no", "false", "0"):
            rest = tuple(pair for pair in fields.items() if pair[0].lower() not in ("types", "uris", "suites", "components", "enabled"))
            uris, suites, components = (tuple(lower.get(name, "").split()) for name in ("uris", "suites", "components"))
            entries.append(AptSource(uris, suites, components, rest))
    return entries


def _distribution_sources(entries: list[AptSource], codename: str) -> tuple[AptSource, ...]:
    release_suites = {name + pocket for name in (codename, *_ALIASES) for pocket in _POCKETS}
    sources = []
    for entry in entries:
        suites = tuple(suite for suite in entry.suites if suite.rstrip("/") in release_suites)
        uris = tuple(uri for uri in entry.uris if not uri.startswith(("file:", "copy:", "cdrom:")))
        if suites and uris and "main" in entry.components:
            sources.append(replace(entry, suites=suites, uris=uris))
    # Other vendors also use the release's code name as a suite, but sign with their own keys.
    official = [entry for entry in sources if not entry.field("Signed-By") or _DISTRIBUTION_KEYRING.search(entry.field("Signed-By"))]
    return tuple(official or sources)


def _for_release(source: AptSource, codename: str, suite: str) -> AptSource:
    names = (codename, *_ALIASES)
    suites = (re.sub(rf"^({'|'.join(names)})(?=$|[-/])", suite, old) for old in source.suites)
    return replace(source, suites=tuple(dict.fromkeys(suites)))


def _render(source: AptSource) -> str:
    head = {"Types": "deb", "URIs": " ".join(source.uris), "Suites": " ".join(source.suites), "Components": " ".join(source.components)}
    return "".join(f"{name}: {value}\n" for name, value in [*head.items(), *source.fields])


def _proxy_options(dump: list[str]) -> tuple[str, ...]:
    """Return the environment's proxies as apt options, unless apt has its own: nodes do not inherit the environment."""
    options = []
    for scheme in ("http", "https"):
        value = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        if value and not any(re.match(rf'(?i)Acquire::{scheme}::Proxy "[^"]', line) for line in dump):
            options.append(f'Acquire::{scheme}::Proxy "{value}";')
    return tuple(options)


def _extra_keys(etc: Path) -> list[Path]:
    return [key for key in sorted((etc / "trusted.gpg.d").glob("*")) if not _DISTRIBUTION_KEYRING.search(str(key))]


def _is_file(path: Path, sudo: tuple[str, ...]) -> bool:
    try:
        return path.is_file()
    except PermissionError:
        return run([*sudo, "test", "-f", str(path)], timeout_s=10, check=False).code == 0
