# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters of the role `harbor`: conflicts between variables, which `validate` reports too, defaults of entries, the key of tokens."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
HOSTNAME = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+")
# Harbor's rule (src/controller/robot, IsValidSec): 8 to 128 characters, with an upper-case letter, a lower-case letter and a digit.
SECRET = re.compile(r"(?=.*[A-Z])(?=.*[a-z])(?=.*[0-9]).{8,128}")
# The variables that `findings` reads.
VARIABLES = (
    "harbor_hostname",
    "harbor_expose",
    "harbor_gateway_parents",
    "harbor_tls_issuer",
    "harbor_tls_cert_file",
    "harbor_tls_key_file",
    "harbor_storage_class",
    "harbor_database_storage_class",
    "harbor_s3_bucket",
    "harbor_database_host",
    "harbor_redis_addresses",
    "harbor_redis_sentinel",
    "harbor_trivy",
    "harbor_trivy_offline",
    "harbor_trivy_databases",
    "harbor_projects",
    "harbor_robots",
    "harbor_nodes_robot",
    "harbor_gc_cron",
    "harbor_scan_cron",
)

# Defaults of entries, as in meta/argument_specs.yml (tests/unit/test_role_harbor.py compares them).
PROJECT: dict[str, Any] = {
    "public": False,
    "quota_gib": 0,
    "scan_on_push": True,
    "sbom_on_push": False,
    "block_severity": "",
    "signed_only": False,
    "immutable_tags": [],
    "keep": [],
    "keep_cron": "0 0 2 * * *",
}
KEEP: dict[str, Any] = {"repositories": "**", "tags": "**", "untagged": False}
ROBOT: dict[str, Any] = {"description": "", "projects": [], "may": ["pull"], "days": 0}

Finding = tuple[str, str, str, str]


def findings(values: Mapping[str, Any], juicefs: str, issuer: bool) -> list[Finding]:  # noqa: FBT001 (Jinja calls it so)
    """Return each conflict as variable, message, fix and rule name.

    Args:
        values: The role's variables by name; a missing one has its default.
        juicefs: Name of the storage class of the chart juicefs_csi; empty if it is not part of the cluster.
        issuer: Whether the cluster has its own certificate issuer.
    """
    return [
        *_storage(values, juicefs),
        *_outside(values),
        *_address(values),
        *_certificate(values, has_issuer=issuer),
        *_content(values),
        *_crons(values),
    ]


def messages(found: Sequence[Finding]) -> list[str]:
    """Return findings as error messages."""
    return [f"{what}. Fix: {fix}." for _, what, fix, _ in found]


def _storage(values: Mapping[str, Any], juicefs: str) -> Iterator[Finding]:
    images, database = values.get("harbor_storage_class", ""), values.get("harbor_database_storage_class", "")
    if not images and not values.get("harbor_s3_bucket"):
        what = "harbor has no storage class and no bucket: its pods would wait for a volume for ever"
        fix = "set harbor_storage_class to a class of the cluster, or harbor_s3_bucket"
        yield "harbor_storage_class", what, fix, "harbor-storage-class"
    outside = values.get("harbor_database_host") and values.get("harbor_redis_addresses") and not values.get("harbor_trivy", True)
    if not database and not images and not outside:
        what = "harbor has no storage class for its database, Redis or scanner, which need volumes even if images are in a bucket"
        yield "harbor_database_storage_class", what, "set harbor_database_storage_class to a class of the cluster", "harbor-storage-class"
    if juicefs and (database or images) == juicefs:
        what = f"harbor's database would use the class {database or images}, which is JuiceFS: every commit would go to the object store"
        fix = "set harbor_database_storage_class to a class of local or block storage"
        yield "harbor_database_storage_class" if database else "harbor_storage_class", what, fix, "harbor-database-on-juicefs"


def _outside(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Report a Redis of several addresses without Sentinel: Harbor would use only one of them."""
    addresses, sentinel = values.get("harbor_redis_addresses") or [], values.get("harbor_redis_sentinel", "")
    wrong = [str(one) for one in addresses if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s]+):\d+", str(one))]
    if wrong:
        what = f"harbor_redis_addresses: {wrong[0]} has no port"
        yield "harbor_redis_addresses", what, "write host:port, such as redis1:6379", "harbor-redis"
    elif len(addresses) > 1 and not sentinel:
        what = f"harbor_redis_addresses has {len(addresses)} addresses, but Harbor uses several only with harbor_redis_sentinel"
        fix = "set harbor_redis_sentinel to the name of the primary that the Sentinels monitor, or keep one address"
        yield "harbor_redis_addresses", what, fix, "harbor-redis"
    elif sentinel and not addresses:
        what = "harbor_redis_sentinel is set, and harbor_redis_addresses is empty"
        yield "harbor_redis_sentinel", what, "set harbor_redis_addresses to the addresses of the Sentinels", "harbor-redis"


def _address(values: Mapping[str, Any]) -> Iterator[Finding]:
    name = values.get("harbor_hostname", "")
    if not HOSTNAME.fullmatch(name):
        what = f"harbor_hostname is {name!r}, which is not a DNS name" if name else "harbor_hostname is empty: clients need a name"
        yield "harbor_hostname", what, "set it to the name for image references, such as harbor.example.com", "harbor-hostname"
    if values.get("harbor_expose") == "route" and not values.get("harbor_gateway_parents"):
        what = "harbor_expose is route and harbor_gateway_parents is empty"
        yield (
            "harbor_gateway_parents",
            what,
            "set it to the Gateway, such as [{name: gateway, namespace: higress-system}]",
            "harbor-gateway",
        )


def _certificate(values: Mapping[str, Any], *, has_issuer: bool) -> Iterator[Finding]:
    issuer, cert, key = (values.get(f"harbor_tls_{part}", "") for part in ("issuer", "cert_file", "key_file"))
    if bool(cert) != bool(key):
        about = "harbor_tls_cert_file" if cert else "harbor_tls_key_file"
        other = "harbor_tls_key_file" if cert else "harbor_tls_cert_file"
        yield about, f"{about} is set without {other}", "set both, or harbor_tls_issuer alone", "harbor-certificate"
    elif issuer and cert:
        what = "harbor_tls_issuer and harbor_tls_cert_file are both set"
        yield "harbor_tls_issuer", what, "set only one of them", "harbor-certificate"
    elif not issuer and not cert and not has_issuer:
        what = "harbor has no certificate: hosts would pull over an untrusted connection"
        fix = "add a host to the group kube_cert_manager, or set harbor_tls_cert_file and harbor_tls_key_file"
        yield "harbor_tls_issuer", what, fix, "harbor-certificate"


def _content(values: Mapping[str, Any]) -> Iterator[Finding]:
    projects, robots = values.get("harbor_projects") or [], values.get("harbor_robots") or []
    names = [one.get("name", "") for one in projects]
    for about, kind, listed in (("harbor_projects", "project", names), ("harbor_robots", "robot", [one.get("name", "") for one in robots])):
        for name in sorted(set(listed)):
            if listed.count(name) > 1:
                yield about, f"{about} contains the {kind} {name} {listed.count(name)} times", "keep one of them", "harbor-twice"
            if not NAME.fullmatch(str(name)):
                what = f"{about}: Harbor does not accept the name {name!r}"
                yield about, what, "use lower-case letters and digits, with . _ - between them", "harbor-name"
    for robot in robots:
        missing = [name for name in robot.get("projects") or () if name not in names]
        if missing:
            what = f"the robot {robot.get('name')} has access to {', '.join(missing)}, which harbor_projects does not contain"
            yield "harbor_robots", what, "add the project to harbor_projects, or remove it from the robot", "harbor-robot-project"
    puller = values.get("harbor_nodes_robot") or ""
    if puller and puller not in [one.get("name", "") for one in robots]:
        what = f"harbor_nodes_robot is {puller}, which harbor_robots does not contain"
        yield "harbor_nodes_robot", what, "add the robot to harbor_robots, or leave harbor_nodes_robot empty", "harbor-nodes-robot"
    blocking = [str(project.get("name")) for project in projects if project.get("block_severity")]
    for name in blocking if not values.get("harbor_trivy", True) else ():
        what = f"the project {name} has block_severity, and harbor_trivy is false: no image would be scanned"
        yield "harbor_projects", what, "set harbor_trivy to true, or remove block_severity", "harbor-scan"
    if blocking and values.get("harbor_trivy", True) and values.get("harbor_trivy_offline"):
        yield from database_finding(values, "harbor_trivy_offline is true", blocking[0])


def database_finding(values: Mapping[str, Any], reason: str, project: str) -> Iterator[Finding]:
    """Report that Trivy cannot load its database. Harbor refuses to serve an unscanned image of a project with block_severity."""
    if not values.get("harbor_trivy_databases"):
        what = f"{reason}, and Trivy has no database: Harbor would block every pull from the project {project}, which has block_severity"
        fix = "copy ghcr.io/aquasecurity/trivy-db:2 and trivy-java-db:1 to a registry of your network, and set harbor_trivy_databases to it"
        yield "harbor_projects", what, f"{fix}; or remove block_severity", "harbor-trivy-database"


def _crons(values: Mapping[str, Any]) -> Iterator[Finding]:
    listed = [(name, values.get(name) or "") for name in ("harbor_gc_cron", "harbor_scan_cron")]
    listed += [("harbor_projects", one.get("keep_cron") or "") for one in values.get("harbor_projects") or ()]
    for about, cron in listed:
        if cron and (len(cron.split()) != 6 or cron.split()[0] != "0"):
            what = f"{about}: Harbor does not accept the schedule {cron!r}"
            yield about, what, "use six fields, the first of them 0: second minute hour day month weekday ('0 0 3 * * 6')", "harbor-cron"


def weak_secrets(robots: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of robots whose secret Harbor would reject."""
    return [str(one["name"]) for one in robots if not SECRET.fullmatch(str(one.get("secret") or ""))]


def projects(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return projects with every key; a missing one has its default."""
    found = [{**PROJECT, **one} for one in listed]
    return [{**one, "keep": [{**KEEP, **rule} for rule in one["keep"]]} for one in found]


def robots(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return robots with every key; a missing one has its default."""
    return [{**ROBOT, **one} for one in listed]


def without_secrets(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return robots without their secrets, for error messages."""
    return [{name: value for name, value in one.items() if name != "secret"} for one in listed]


def logins(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the facts of each robot that the verification needs."""
    return [{"name": one["name"], "secret": one["secret"], "projects": one["projects"], "push": "push" in one["may"]} for one in listed]


def secret_of(listed: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the secret of one robot; empty if there is no such robot."""
    return next((str(one["secret"]) for one in listed if one["name"] == name), "")


def token_pair(name: str) -> dict[str, str]:
    """Return a key and its certificate, PEM, with which Harbor signs tokens. The chart's own certificate expires after a year."""
    # Imported here, because `validate` loads this file too and does not need it.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    key = rsa.generate_private_key(public_exponent=65537, key_size=4096)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} tokens"[:64])])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    return {"tls.key": private.decode(), "tls.crt": certificate.public_bytes(serialization.Encoding.PEM).decode()}


class FilterModule:
    """The filters, as Ansible loads them."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "harbor_findings": findings,
            "harbor_logins": logins,
            "harbor_messages": messages,
            "harbor_projects": projects,
            "harbor_robots": robots,
            "harbor_secret_of": secret_of,
            "harbor_token_pair": token_pair,
            "harbor_weak_secrets": weak_secrets,
            "harbor_without_secrets": without_secrets,
        }
