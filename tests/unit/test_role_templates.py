"""Templates of roles, rendered by Ansible with undefined variables as errors, and parsed by the target programs."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import pytest
from ansible.errors import AnsibleUndefinedVariable
from ansible.template import trust_as_template

from primus_bootstrap import content
from tests.role_variables import templar_of, variable

if TYPE_CHECKING:
    from pathlib import Path

FACTS = {
    "Debian": {"os_family": "Debian", "distribution": "Debian", "distribution_release": "bookworm"},
    "Ubuntu": {"os_family": "Debian", "distribution": "Ubuntu", "distribution_release": "noble"},
    "Rocky": {"os_family": "RedHat", "distribution": "Rocky", "distribution_release": "Blue Onyx"},
}


def templates() -> list[Path]:
    """Return every template of every role."""
    return sorted(content.roles_dir().glob("*/templates/**/*.j2"))


def render(role: str, name: str, system: str = "Debian", **variables: Any) -> str:
    """Render a template with defaults and vars of the role, facts of a system, and extra variables."""
    text = (content.roles_dir() / role / "templates" / name).read_text(encoding="utf-8")
    templar = templar_of(role, FACTS[system], **variables)
    overrides = {"trim_blocks": True, "lstrip_blocks": False, "keep_trailing_newline": True}
    rendered: str = templar.copy_with_new_env(**overrides).template(trust_as_template(text), escape_backslashes=False)
    return rendered


@pytest.mark.parametrize("path", templates(), ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_complete_files_start_with_the_ansible_mark(path: Path) -> None:
    """service_hosts.j2 is inserted into such a file. Of known_hosts.j2 the broker reads the first line as the host's address."""
    first = path.read_text(encoding="utf-8").splitlines()[0]

    marked = "ansible_managed | comment" in first or path.name in ("service_hosts.j2", "known_hosts.j2")
    line = "`{{ ansible_managed | comment }}`"
    assert marked, f"begin {path} with {line}; write a file whose readers must not see that line with `copy` and `content`"


def test_undefined_variable_stops_the_rendering() -> None:
    """The other tests depend on this."""
    with pytest.raises(AnsibleUndefinedVariable, match="__baseline_service_hosts"):
        render("baseline", "hosts.j2", ansible_host="10.0.0.1")


@pytest.mark.parametrize(
    ("system", "suites", "components", "keyring"),
    [
        ("Debian", ["bookworm bookworm-updates", "bookworm-security"], "main", "debian-archive-keyring"),
        ("Ubuntu", ["noble noble-updates", "noble-security"], "main restricted universe multiverse", "ubuntu-archive-keyring"),
    ],
)
def test_mirror_replaces_the_distribution_sources(system: str, suites: list[str], components: str, keyring: str) -> None:
    """Two deb822 stanzas for archive and security mirrors, with the distribution's keys."""
    urls = {"baseline_apt_mirror_url": "http://mirror/a", "baseline_apt_security_mirror_url": "http://mirror/s"}
    text = render("baseline", "distribution.sources.j2", system, **urls)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    stanzas = [dict(line.split(": ", 1) for line in part.splitlines()) for part in "\n".join(lines).strip().split("\n\n")]

    assert [stanza["URIs"] for stanza in stanzas] == ["http://mirror/a", "http://mirror/s"]
    assert [stanza["Suites"] for stanza in stanzas] == suites
    assert {stanza["Components"] for stanza in stanzas} == {components}
    assert all(keyring in stanza["Signed-By"] for stanza in stanzas)


@pytest.mark.parametrize("system", FACTS)
def test_chrony_uses_configured_servers_or_the_pool(system: str) -> None:
    """Configured servers replace the pool."""
    pool = render("baseline", "chrony.conf.j2", system)
    own = render("baseline", "chrony.conf.j2", system, baseline_ntp_servers=["10.0.0.1", "10.0.0.2"])

    assert [line.split()[0] for line in pool.splitlines() if "iburst" in line] == ["pool"]
    assert [line for line in own.splitlines() if "iburst" in line] == ["server 10.0.0.1 iburst", "server 10.0.0.2 iburst"]
    assert "makestep 1 3" in own


@pytest.mark.parametrize(
    ("distribution", "epel", "crb"),
    [
        ("Rocky", ["epel-release"], "crb"),
        ("AlmaLinux", ["epel-release"], "crb"),
        ("RedHat", ["epel-release"], "codeready-builder-for-rhel-9-aarch64-rpms"),
    ],
)
def test_systems_like_rhel_get_epel_and_crb(distribution: str, epel: list[str], crb: str) -> None:
    """Slurm and Apptainer come from EPEL, whose packages depend on CRB. Debian has neither."""
    facts = {"os_family": "RedHat", "distribution": distribution, "architecture": "aarch64"}

    assert variable("baseline", "_baseline_epel_packages", facts) == epel
    assert {"epel-release", "dnf-plugins-core"} <= set(variable("baseline", "_baseline_packages", facts))
    assert variable("baseline", "_baseline_crb", facts) == crb
    assert variable("baseline", "_baseline_epel_packages", facts, baseline_epel=False) == []
    assert variable("baseline", "_baseline_epel_packages", FACTS["Ubuntu"]) == []


def test_needrestart_only_lists() -> None:
    """Perl: a line is a comment or a statement. `l` is the mode without restarts."""
    lines = render("baseline", "needrestart.conf.j2").splitlines()

    assert [line for line in lines if not line.startswith("#")] == ["$nrconf{restart} = 'l';"]


def hosts_lines(**variables: Any) -> list[str]:
    """Render both parts of the hosts block and return its entries."""
    services = render("baseline", "service_hosts.j2", **variables)
    text = render("baseline", "hosts.j2", **variables, __baseline_service_hosts=services)
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_hosts_block_contains_this_host_and_service_hosts() -> None:
    """`ip` precedes `ansible_host`. Other groups, loopback addresses and names are omitted; no duplicates."""
    hostvars = {
        "cp1": {"ip": "10.0.0.1", "ansible_host": "203.0.113.1"},
        "cp2": {"ansible_host": "fd00::2"},
        "cp3": {"ansible_host": "cp3.example.com"},
        "cp4": {"ansible_host": "127.0.0.1"},
        "cp5": {},
    }
    groups = {"kube_control_plane": [*hostvars], "etcd": ["cp1"], "gpu_node": ["n1"]}
    worker = hosts_lines(groups=groups, hostvars=hostvars, ansible_host="10.0.0.9")
    member = hosts_lines(groups=groups, hostvars=hostvars, inventory_hostname="cp1", ip="10.0.0.1", ansible_host="203.0.113.1")
    local = hosts_lines(groups={}, hostvars={}, ansible_host="127.0.0.1")

    assert worker == ["10.0.0.9 n1", "10.0.0.1 cp1", "fd00::2 cp2"]
    assert member == ["10.0.0.1 cp1", "fd00::2 cp2"]
    assert local == []
    assert all(ipaddress.ip_address(line.split()[0]) for line in worker)


def test_login_shells_get_proxies_without_the_local_machine() -> None:
    """Programs read upper or lower case names. Local addresses bypass the proxy."""
    text = render("baseline", "environment.j2", baseline_https_proxy_url="http://proxy:3128", baseline_no_proxy=[".example.com"])
    pairs = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))

    assert pairs["https_proxy"] == pairs["HTTPS_PROXY"] == "http://proxy:3128"
    assert pairs["no_proxy"] == "localhost,127.0.0.1,::1,.example.com"
    assert "http_proxy" not in pairs
