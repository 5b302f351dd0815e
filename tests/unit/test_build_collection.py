"""tools/build_collection.py: names and paths in the collection, and the archive."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from tools.build_collection import File, Names, pack, rewrite, target

NAMES = Names(
    "primus.bootstrap",
    module_utils=frozenset({"slurm_nodes", "slurm"}),
    modules=frozenset({"bench_node"}),
    lookups=frozenset({"primus_cli_program"}),
    filters=frozenset({"redis_url", "redis", "trainer_runtime"}),
)
METADATA = {
    "namespace": "primus",
    "name": "bootstrap",
    "version": "1.2.3",
    "license_file": "LICENSE",
    "dependencies": {"ansible.posix": "*"},
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("roles/redis/tasks/main.yml", "roles/redis/tasks/main.yml"),
        ("roles/redis/library/redis_state.py", "plugins/modules/redis_state.py"),
        ("roles/redis/action_plugins/a.py", "plugins/action/a.py"),
        ("roles/slurm/files/library/x.py", "roles/slurm/files/library/x.py"),
        ("roles/redis/molecule/default/verify.yml", None),
        ("collection/meta/runtime.yml", "meta/runtime.yml"),
        ("collection/galaxy.yml", None),
        ("docs/reset.md", "docs/reset.md"),
        ("LICENSE", "LICENSE"),
    ],
)
def test_plugins_move_and_other_files_stay(source: str, expected: str | None) -> None:
    """Plug-ins beside a role are in plugins/ of the collection. Molecule's scenarios are left out."""
    assert target(source) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{{ x | redis_url | map('redis') }}", "{{ x | primus.bootstrap.redis_url | map('primus.bootstrap.redis') }}"),
        ("{{ x|redis(redis_url) }}", "{{ x|primus.bootstrap.redis(redis_url) }}"),
        ("{{ x | map('extract', redis) | list }}", "{{ x | map('extract', redis) | list }}"),
        ("{{ x | redis_urls | ansible.builtin.combine }}", "{{ x | redis_urls | ansible.builtin.combine }}"),
        ("{{ lookup('primus_cli_program') }}", "{{ lookup('primus.bootstrap.primus_cli_program') }}"),
        ("  redis:", "  redis:"),
    ],
)
def test_roles_use_full_names_of_filters_and_lookups(line: str, expected: str) -> None:
    """Ansible finds no filter or lookup of a collection by its short name."""
    assert rewrite("roles/r/tasks/main.yml", line.encode(), NAMES).decode() == expected
    assert rewrite("roles/r/templates/x.j2", line.encode(), NAMES).decode() == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "from ansible.module_utils.slurm_nodes import A",
            "from ansible_collections.primus.bootstrap.plugins.module_utils.slurm_nodes import A",
        ),
        ("from ansible.module_utils import slurm", "from ansible_collections.primus.bootstrap.plugins.module_utils import slurm"),
        ("from ansible.module_utils.basic import AnsibleModule", "from ansible.module_utils.basic import AnsibleModule"),
        ('call(module_name="bench_node")', 'call(module_name="primus.bootstrap.bench_node")'),
    ],
)
def test_plugins_import_shared_code_from_the_collection(line: str, expected: str) -> None:
    """Modules of Ansible itself keep their names."""
    assert rewrite("plugins/modules/m.py", line.encode(), NAMES).decode() == expected
    assert rewrite("roles/r/files/program.py", line.encode(), NAMES) == line.encode()


def members(archive: bytes) -> dict[str, tarfile.TarInfo]:
    """Return the entries of an archive by name."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name: member for member in opened.getmembers()}


def content(archive: bytes, path: str) -> bytes:
    """Return a file of an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        file = opened.extractfile(path)
        assert file
        return file.read()


def test_the_archive_lists_its_files_with_checksums() -> None:
    """MANIFEST.json has the checksum of FILES.json, which has those of all files; folders and executable files are kept."""
    archive = pack(METADATA, {"README.md": File(b"r", executable=False), "roles/a/files/x.sh": File(b"x", executable=True)})
    files = json.loads(content(archive, "FILES.json"))["files"]
    manifest = json.loads(content(archive, "MANIFEST.json"))

    assert {entry["name"]: entry["chksum_sha256"] for entry in files} == {
        **dict.fromkeys((".", "roles", "roles/a", "roles/a/files")),
        "README.md": hashlib.sha256(b"r").hexdigest(),
        "roles/a/files/x.sh": hashlib.sha256(b"x").hexdigest(),
    }
    assert manifest["file_manifest_file"]["chksum_sha256"] == hashlib.sha256(content(archive, "FILES.json")).hexdigest()
    assert manifest["collection_info"]["dependencies"] == {"ansible.posix": "*"}
    assert manifest["collection_info"]["license"] == []
    assert members(archive)["roles/a"].isdir()
    assert (members(archive)["roles/a/files/x.sh"].mode, members(archive)["README.md"].mode) == (0o755, 0o644)


def test_the_same_files_give_the_same_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only SOURCE_DATE_EPOCH changes the times in the archive, never the clock."""
    files = {"README.md": File(b"r", executable=False)}
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    first = pack(METADATA, files)

    assert pack(METADATA, files) == first
    assert {member.mtime for member in members(first).values()} == {1580601600}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert {member.mtime for member in members(pack(METADATA, files)).values()} == {1700000000}
