# ruff: noqa: INP001 (a program of this scenario)
"""Create a key pair, its public key as a JSON Web Key Set, and one valid and several invalid tokens (RFC 7515, RFC 7517)."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

HOUR_S = 3600


def encoded(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(key: rsa.RSAPrivateKey, **claims: object) -> str:
    """Return a signed token."""
    parts = ({"alg": "RS256", "kid": "molecule", "typ": "JWT"}, claims)
    body = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    return f"{body}.{encoded(key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def main() -> None:
    """Write jwks.json and the tokens into a folder."""
    folder = Path(sys.argv[1])
    key, other = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
    numbers = key.public_key().public_numbers()
    n, e = (encoded(one.to_bytes((one.bit_length() + 7) // 8, "big")) for one in (numbers.n, numbers.e))
    (folder / "jwks.json").write_text(
        json.dumps({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "molecule", "n": n, "e": e}]})
    )
    claims = {"iss": "https://issuer.example.com", "aud": "gateway", "sub": "carol", "exp": int(time.time()) + 24 * HOUR_S}
    for name, text in {
        "good": token(key, **claims),
        "over": token(key, **{**claims, "exp": int(time.time()) - HOUR_S}),
        "foreign": token(other, **claims),
        "audience": token(key, **{**claims, "aud": "another"}),
        "endless": token(key, **{key: value for key, value in claims.items() if key != "exp"}),
    }.items():
        (folder / f"{name}.jwt").write_text(text)


if __name__ == "__main__":
    main()
