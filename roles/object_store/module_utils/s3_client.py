# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""S3 requests with a signature, with the standard library only.

amazon.aws needs boto3 on the host. Signature: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import http.client
import ssl
from typing import NamedTuple
from urllib.parse import quote

CALL_S = 20.0
REGION = "us-east-1"  # the store accepts every region


class Keys(NamedTuple):
    """The keys of an account. Without an access key, requests are not signed."""

    access_key: str
    secret_key: str


class Answer(NamedTuple):
    """Status and body of an answer; status 0 and the error if there was none."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return what happened, in words."""
        return f"status {self.status}" if self.status else self.body.decode("utf-8", "replace")


def signed_headers(method: str, path: str, query: str, body: bytes, host: str, keys: Keys, now: dt.datetime) -> dict[str, str]:  # noqa: PLR0913, PLR0917 (the parts of a request)
    """Return the headers of a request with its signature."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if not keys.access_key:
        return headers
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    request = "\n".join([method, quote(path), query, *lines, "", names, digest])
    scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{keys.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"{keys.access_key}/{scope}"
    return {**headers, "authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"}


class Endpoint:
    """An S3 endpoint with TLS."""

    def __init__(self, address: str, port: int, ca_file: str) -> None:
        """Store the parameters. `ca_file` signed the endpoint's certificate."""
        self.address, self.port, self.ca_file = address, port, ca_file

    def call(self, keys: Keys, method: str, path: str, body: bytes = b"", query: str = "") -> Answer:
        """Send a request and return its answer."""
        host = f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
        headers = signed_headers(method, path, query, body, host, keys, dt.datetime.now(dt.timezone.utc))  # noqa: UP017 (Python 3.9)
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            connection = http.client.HTTPSConnection(self.address, self.port, timeout=CALL_S, context=context)
            try:
                connection.request(method, path + (f"?{query}" if query else ""), body or None, headers)
                answer = connection.getresponse()
                return Answer(answer.status, answer.read())
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Answer(0, (str(error) or type(error).__name__).encode())
