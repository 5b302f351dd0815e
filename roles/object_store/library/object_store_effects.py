#!/usr/bin/python
"""Verify the object store from one of its hosts: S3 requests, access, masters, and copies of volumes. It reports verdicts.

With `other` it only reads the object that another host wrote, through the gateway of this host.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.s3_client import CALL_S, Answer, Endpoint, Keys
from ansible.module_utils.verdict_records import Verdicts
from ansible.module_utils.web_service import check_plain_text

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[..., Answer]

OK, FORBIDDEN = 200, 403
# How long the name of an object may take to reach another host.
SYNC_S = 30.0
RETRY_S = 0.5
OBJECT_BYTES = 1 << 20
# An apply renews certificates 60 days before their end.
LEAST_DAYS = 30
# gRPC is HTTP/2: the connection preface and an empty SETTINGS frame (RFC 9113, 3.4 and 6.5). Its port is 10000 above that of HTTP.
GRPC_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HTTP_HELLO = b"GET / HTTP/1.0\r\n\r\n"
GRPC_OFFSET = 10_000
LOG = "run `journalctl -u primus-object-filer -n 30` on this host, then apply the phase storage again"


def check_requests(call: Call, verdicts: Verdicts, bucket: str, name: str, data: bytes) -> str:
    """Write an object, read it and list it; return the checksum of what was written, or an empty text."""
    path = f"/{bucket}/{name}"
    written = call("PUT", path, data)
    verdicts.add("put", "pass" if written.status == OK else "fail", expected="status 200", found=written.text, fix=LOG)
    if written.status != OK:
        return ""
    read = call("GET", path)
    same = read.status == OK and read.body == data
    verdicts.add("get", "pass" if same else "fail", expected="the same bytes", found="the same bytes" if same else read.text, fix=LOG)
    listed = call("GET", f"/{bucket}", query="list-type=2")
    has_name = listed.status == OK and f"<Key>{name}</Key>".encode() in listed.body
    found = name if has_name else listed.text
    verdicts.add("list", "pass" if has_name else "fail", expected=name, found=found, fix=LOG)
    return hashlib.sha256(data).hexdigest()


def check_refusals(endpoint: Endpoint, verdicts: Verdicts, keys: Keys, bucket: str, name: str) -> None:
    """Check that a wrong key, no key, and the creation of a bucket are refused."""
    wrong = Keys(keys.access_key, f"not-{keys.secret_key}")
    cases = (("refuses_wrong_key", wrong, f"/{bucket}/{name}"), ("refuses_no_key", Keys("", ""), f"/{bucket}/{name}"))
    fix = "apply the phase storage again: the gateway does not use /etc/seaweedfs/s3.json"
    for check, used, path in cases:
        answer = endpoint.call(used, "GET", path)
        verdict = "pass" if answer.status == FORBIDDEN else "fail" if answer.status == OK else "unknown"
        verdicts.add(check, verdict, expected="status 403", found=answer.text, fix=fix)
    created = endpoint.call(keys, "PUT", "/primus-verify-refused")
    verdict = "pass" if created.status == FORBIDDEN else "fail" if created.status == OK else "unknown"
    verdicts.add("refuses_new_bucket", verdict, expected="status 403", found=created.text, fix=fix)


def first_bytes(address: str, port: int, context: ssl.SSLContext, hello: bytes) -> bytes | None:
    """Return the first bytes of an answer over TLS; empty if the service refuses it, None if nothing listens."""
    try:
        raw = socket.create_connection((address, port), timeout=CALL_S)
    except OSError:
        return None
    try:
        # With TLS 1.3, a missing certificate is refused after the handshake, at the first read.
        with raw, context.wrap_socket(raw, server_hostname=address) as connection:
            connection.sendall(hello)
            return connection.recv(64)
    except OSError:
        return b""


def group_contexts(tls_dir: str, protocol: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS settings with the certificate of the group, and without one."""
    member = ssl.create_default_context(cafile=f"{tls_dir}/group-ca.crt")
    member.load_cert_chain(f"{tls_dir}/group.crt", f"{tls_dir}/group.key")
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    for context in (member, stranger):
        context.set_alpn_protocols([protocol])
    return member, stranger


def port_verdict(member: bytes | None, stranger: bytes | None) -> tuple[str, str]:
    """Return the verdict on a port of the group and what was found, from the answers with and without a certificate.

    A service that cannot read its certificates serves gRPC without TLS, and then refuses the member too.
    """
    if member is None or stranger is None:
        return "unknown", "nothing listens"
    if stranger:
        return "fail", "answers without a certificate"
    return ("pass", "needs a certificate") if member else ("fail", "no TLS with the certificate of the group")


def check_group_ports(verdicts: Verdicts, address: str, ports: list[int], s3_port: int, tls_dir: str) -> None:
    """Check that the ports between the hosts need a certificate of the group, and so do those of gRPC."""
    fix = "run `journalctl -u 'primus-object-*' | grep tls.go`, correct the files in /etc/seaweedfs/tls, and apply the phase storage again"
    https, grpc = group_contexts(tls_dir, "http/1.1"), group_contexts(tls_dir, "h2")
    checks = [(port, https, HTTP_HELLO) for port in ports] + [(port + GRPC_OFFSET, grpc, GRPC_HELLO) for port in (*ports, s3_port)]
    for port, contexts, hello in checks:
        member, stranger = (first_bytes(address, port, context, hello) for context in contexts)
        verdict, found = port_verdict(member, stranger)
        verdicts.add("needs_certificate", verdict, expected="needs a certificate", found=found, fix=fix, device=f"port {port}")


class Masters:
    """The masters, asked with the certificate of this host."""

    def __init__(self, addresses: list[str], tls_dir: str) -> None:
        """Store the addresses, HOST:PORT."""
        self.addresses, self.tls_dir = addresses, tls_dir

    def read(self, address: str, path: str) -> Any:
        """Return a JSON answer of one master, or None if there is none."""
        host, _, port = address.rpartition(":")
        try:
            context = ssl.create_default_context(cafile=f"{self.tls_dir}/group-ca.crt")
            context.load_cert_chain(f"{self.tls_dir}/group.crt", f"{self.tls_dir}/group.key")
            connection = http.client.HTTPSConnection(host, int(port), timeout=CALL_S, context=context)
            try:
                connection.request("GET", path)
                return json.loads(connection.getresponse().read())
            finally:
                connection.close()
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def statuses(self) -> list[dict[str, Any]]:
        """Return the state of the cluster as each answering master sees it."""
        return [answer for address in self.addresses if isinstance(answer := self.read(address, "/cluster/status"), dict)]

    def first(self, path: str) -> dict[str, Any] | None:
        """Return the answer of the first master that answers, or None."""
        answers = (self.read(address, path) for address in self.addresses)
        return next((answer for answer in answers if isinstance(answer, dict)), None)


def volume_servers_of(status: dict[str, Any]) -> list[str]:
    """Return the addresses of the volume servers in an answer of /dir/status."""
    centers = status["Topology"]["DataCenters"] or ()
    return sorted(node["Url"] for center in centers for rack in center["Racks"] or () for node in rack["DataNodes"] or ())


def volumes_without_copy(status: dict[str, Any]) -> list[int]:
    """Return the volumes in an answer of /vol/status that have fewer copies than their replication code asks for."""
    copies: dict[int, int] = {}
    wanted: dict[int, int] = {}
    for racks in status["Volumes"]["DataCenters"].values():
        for volume in (one for nodes in racks.values() for volumes in nodes.values() for one in volumes or ()):
            number, placement = volume["Id"], volume["ReplicaPlacement"]
            copies[number] = copies.get(number, 0) + 1
            wanted[number] = 1 + sum(placement.get(key, 0) for key in ("node", "rack", "dc"))
    return sorted(number for number, count in copies.items() if count < wanted[number])


def check_cluster(masters: Masters, verdicts: Verdicts, volume_servers: int) -> None:
    """Check that all masters follow one leader, all hosts store volumes, and every volume has all copies."""
    fix = "run `systemctl status primus-object-master primus-object-volume` on the hosts of object_store"
    statuses = masters.statuses()
    leaders = {status.get("Leader", "") for status in statuses} - {""}
    expected = f"{len(masters.addresses)} with one leader"
    verdict = "pass" if len(statuses) == len(masters.addresses) and len(leaders) == 1 else "fail"
    verdicts.add("masters", verdict, expected=expected, found=f"{len(statuses)} with {len(leaders)} leaders", fix=fix)
    hosts, volumes = masters.first("/dir/status"), masters.first("/vol/status")
    if hosts is None or volumes is None:
        verdicts.add("hosts", "unknown", expected=str(volume_servers), reason="no master answered", fix=fix)
        return
    servers, missing = volume_servers_of(hosts), volumes_without_copy(volumes)
    verdict = "pass" if len(servers) == volume_servers else "fail"
    verdicts.add("hosts", verdict, expected=str(volume_servers), found=f"{len(servers)}: {', '.join(servers)}", fix=fix)
    found = f"{len(missing)} volumes lack a copy" if missing else "all copies"
    repair = "start the missing hosts, or wait: the masters copy these volumes to other hosts, which takes hours for each TB"
    verdicts.add("copies", "fail" if missing else "pass", expected="all copies", found=found, fix=repair)


def check_certificate(verdicts: Verdicts, endpoint: Endpoint) -> None:
    """Check that the certificate of S3 is valid for long enough."""
    fix = "primus-bootstrap secrets rotate hosts.yaml certificates"
    expected = f">= {LEAST_DAYS} days"
    try:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        raw = socket.create_connection((endpoint.address, endpoint.port), timeout=CALL_S)
        with raw, context.wrap_socket(raw, server_hostname=endpoint.address) as connection:
            ends = ssl.cert_time_to_seconds(str((connection.getpeercert() or {})["notAfter"]))
    except (OSError, ValueError, KeyError) as error:
        verdicts.add("certificate", "unknown", expected=expected, reason=str(error), fix=fix)
        return
    days = int((ends - time.time()) / 86400)
    verdicts.add("certificate", "pass" if days >= LEAST_DAYS else "fail", expected=expected, found=f"{days} days", fix=fix)


def check_other(call: Call, verdicts: Verdicts, bucket: str, other: str, expected: str, wait: Callable[[float], object]) -> None:  # noqa: PLR0913, PLR0917 (one check)
    """Check that the object of another host has the same bytes here. Its name arrives some seconds after the write."""
    if not expected:
        verdicts.skip(f"get_from_{other}", f"{other} wrote no object in this run")
        return
    for _ in range(int(SYNC_S / RETRY_S)):
        answer = call("GET", f"/{bucket}/{other}")
        found = hashlib.sha256(answer.body).hexdigest() if answer.status == OK else answer.text
        if found == expected:
            break
        wait(RETRY_S)
    fix = "compare the clocks of the hosts (`chronyc tracking`), and run `journalctl -u primus-object-filer -n 30` on both"
    verdicts.add(f"get_from_{other}", "pass" if found == expected else "fail", expected=expected[:16], found=found[:64], fix=fix)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "host": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "tls_dir": {"type": "path", "required": True},
    "bucket": {"type": "str", "required": True},
    "access_key": {"type": "str", "required": True, "no_log": False},
    "secret_key": {"type": "str", "required": True, "no_log": True},
    "masters": {"type": "list", "elements": "str", "required": True},
    "group_ports": {"type": "list", "elements": "int", "required": True},
    "volume_servers": {"type": "int", "required": True},
    "other": {"type": "str", "default": ""},
    "expected": {"type": "str", "default": ""},
}


def main() -> None:
    """Verify, and end with the verdicts."""
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    params = module.params
    verdicts = Verdicts("object_store", params["host"])
    keys = Keys(params["access_key"], params["secret_key"])
    endpoint = Endpoint(params["address"], params["port"], f"{params['tls_dir']}/s3-ca.crt")

    def call(method: str, path: str, body: bytes = b"", query: str = "") -> Answer:
        return endpoint.call(keys, method, path, body, query)

    if params["other"]:
        check_other(call, verdicts, params["bucket"], params["other"], params["expected"], time.sleep)
        verdicts.finish(module)
    written = check_requests(call, verdicts, params["bucket"], params["host"], os.urandom(OBJECT_BYTES))
    check_refusals(endpoint, verdicts, keys, params["bucket"], params["host"])
    fix = "apply the phase storage again: the gateway does not use its certificate"
    check_plain_text(verdicts, params["address"], params["port"], "/", fix)
    check_group_ports(verdicts, params["address"], params["group_ports"], params["port"], params["tls_dir"])
    check_certificate(verdicts, endpoint)
    check_cluster(Masters(params["masters"], params["tls_dir"]), verdicts, params["volume_servers"])
    verdicts.finish(module, checksum=written)


if __name__ == "__main__":
    main()
