"""Test shared storage with two accounts: owners and modes, links, and reports of verify and apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.security_rig import HOSTS, JOBS, SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab
    from tests.lab.security_rig import People

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

# Path below /jfs: owner, group and mode. The group `training` and 1777-like modes of the shared folders let accounts add files.
LAYOUT = {
    "": "root root 755",
    "home": "root root 755",
    "home/ada": "ada training 700",
    "primus": "root root 755",
    "primus/jobs": "root root 755",
    "primus/verify": "root root 700",
    "data": "root training 3775",
}


def rows_of(found: dict[str, Any], word: str) -> list[dict[str, Any]]:
    """Return the rows of `verify --json` with this word."""
    return [row for row in found["services"] if row["verdict"] == "fail" and word in f"{row}"]


def modes(lab: RunningLab) -> dict[str, str]:
    """Return owner, group and mode of every path of the layout."""
    return {path: lab.sh("node2", f"stat -c '%U %G %a' /jfs/{path}") for path in LAYOUT}


@pytest.mark.fault(cheap=True)
def test_root_owns_the_top_of_shared_storage(applied_cluster: RunningLab) -> None:
    """Cluster folders belong to root, homes are closed, and users can add shared data."""
    assert modes(applied_cluster) == LAYOUT


@pytest.mark.fault(cheap=True)
def test_account_cannot_replace_cluster_folders(applied_cluster: RunningLab) -> None:
    """Attacks 1, 2, 4 and 6: folders of the cluster and of other accounts cannot be moved, recreated or linked."""
    before = applied_cluster.sh("node2", "stat -c '%i %a' /etc /jfs/primus /jfs/primus/jobs /jfs/primus/verify /jfs/home /jfs/home/ada")
    script = """
    for path in /jfs/primus /jfs/primus/jobs /jfs/primus/verify /jfs/home /jfs/home/ada /jfs/data /jfs; do
        mv "$path" "$path-aside" 2> /dev/null && echo "moved $path"
        rm -rf "$path" 2> /dev/null && echo "removed $path"
        ln -sfn /etc "$path-link" 2> /dev/null && [ "$path" != /jfs/home/ada ] && echo "linked beside $path"
        chmod 777 "$path" 2> /dev/null && [ "$path" != /jfs/home/ada ] && echo "opened $path"
    done
    for path in /jfs/mine /jfs/home/other /jfs/primus/mine /jfs/primus/jobs/evil-abcdef /jfs/.primus-verify; do
        mkdir "$path" 2> /dev/null && echo "made $path"
    done
    chmod 700 /jfs/home/ada
    true
    """
    done = applied_cluster.person(SERVICE, script)
    after = applied_cluster.sh("node2", "stat -c '%i %a' /etc /jfs/primus /jfs/primus/jobs /jfs/primus/verify /jfs/home /jfs/home/ada")

    assert (done.returncode, done.stdout) == (0, "")
    assert after == before


@pytest.mark.fault(cheap=True)
def test_only_root_reads_deleted_files(applied_cluster: RunningLab) -> None:
    """Attack 7: deleted files are in the trash for a day, which no account can read on any host."""
    applied_cluster.sh(
        "node1",
        "mkdir -m 700 -p /jfs/primus/verify/trash && echo token > /jfs/primus/verify/trash/secret && rm -r /jfs/primus/verify/trash",
    )
    look = "ls /jfs/.trash; find /jfs/.trash -type f; cat /jfs/.config /jfs/.accesslog; true"
    # Without a job an account logs in to the login host alone.
    seen = {node: applied_cluster.sh(node, f"runuser -u ada -- sh -c '{look}'") for node in HOSTS}

    assert seen == dict.fromkeys(HOSTS, "")


@pytest.mark.fault
def test_account_cannot_enter_other_homes(people: People) -> None:
    """Attack 6: ada cannot list, enter, move or replace bob's home."""
    people.allowed("bob", SERVICE, "echo secret > /jfs/home/bob/x")
    people.refused(
        "ada",
        SERVICE,
        "ls /jfs/home/bob",
        "cat /jfs/home/bob/x",
        "mv /jfs/home/bob /jfs/home/was-bob",
        "mkdir /jfs/home/carol",
        "ln -s /jfs/home/ada /jfs/home/carol",
        "touch /jfs/home/bob/y",
    )

    assert people.allowed("bob", SERVICE, "cat /jfs/home/bob/x") == "secret"


@pytest.mark.fault
def test_shared_data_can_be_added_but_not_taken(people: People) -> None:
    """Both accounts can add to /jfs/data and read it, and change only their own files."""
    people.allowed("ada", SERVICE, "mkdir -p /jfs/data/set && echo tokens > /jfs/data/set/a && chmod 755 /jfs/data/set")
    people.refused("bob", SERVICE, "rm /jfs/data/set/a", "mv /jfs/data/set /jfs/data/other", "rm -rf /jfs/data/set")

    assert people.allowed("bob", SERVICE, "cat /jfs/data/set/a") == "tokens"


@pytest.fixture
def planted(cluster: RunningLab) -> Iterator[str]:
    """Replace a cluster folder with a link to a folder of root, as an old layout allowed, during the test."""
    cluster.sh("node1", "mkdir -m 700 /root/target && echo untouched > /root/target/file && mv /jfs/primus/verify /jfs/primus/verify-kept")
    cluster.sh("node1", "ln -s /root/target /jfs/primus/verify && chown -h ada /jfs/primus/verify")
    yield "/jfs/primus/verify"
    cluster.sh("node1", "rm -rf /root/target /jfs/primus/verify && mv /jfs/primus/verify-kept /jfs/primus/verify")


@pytest.mark.fault
def test_planted_link_is_reported(cluster: RunningLab, planted: str) -> None:
    """Attacks 1 and 2: verify and apply name the path, its type, owner and fix; the target is unchanged."""
    found = cluster.verify("--limit", "node1,node2,node3")
    done = cluster.apply("--phase", "storage")
    output = done.stdout + done.stderr

    assert found["exit_code"] != 0
    assert any("link" in f"{row}" and "ix" in f"{row}" for row in rows_of(found, planted)), found["services"]
    assert done.returncode == 4
    assert planted in output
    assert "symbolic link" in output
    assert cluster.sh("node1", "stat -c '%U %a' /root/target && ls /root/target && cat /root/target/file").split() == [
        "root",
        "700",
        "file",
        "untouched",
    ]


@pytest.mark.fault
@pytest.mark.parametrize(("path", "mode"), [("/jfs", "777"), ("/jfs/home/ada", "755"), ("/jfs/data", "777"), ("/jfs/primus/jobs", "1777")])
def test_wrong_mode_is_reported_and_corrected(cluster: RunningLab, path: str, mode: str) -> None:
    """`chmod 777 /jfs` is reported by verify with its path, and corrected by the next apply."""
    cluster.sh("node1", f"chmod {mode} {path}")
    found = cluster.verify()
    done = cluster.apply("--phase", "storage", "--phase", "scheduling")

    assert found["exit_code"] != 0
    assert rows_of(found, path), f"verify says nothing of {path}: {[row for row in found['services'] if row['verdict'] == 'fail']}"
    assert done.returncode == 0, done.stdout + done.stderr
    assert modes(cluster) == LAYOUT
    assert cluster.verify()["exit_code"] == 0


@pytest.mark.fault
def test_verify_changes_only_its_own_folder(cluster: RunningLab) -> None:
    """Names, owners, modes and contents stay the same, except in /jfs/primus/verify."""
    objects = "/srv/juicefs/objects/*"
    left_out = f"\\( -path /jfs/primus/verify -o -path /jfs/.trash -o -path '{objects}/chunks' -o -path '{objects}/meta' \\) -prune"
    script = f"find /jfs /home /root /srv -xdev {left_out} -o -printf '%p %U %m %s %T@\\n' | sort | sha256sum"
    before = {node: cluster.sh(node, script, timeout_s=300) for node in HOSTS}
    found = cluster.verify()
    after = {node: cluster.sh(node, script, timeout_s=300) for node in HOSTS}

    assert found["exit_code"] == 0
    assert after == before


@pytest.mark.fault
def test_folders_of_an_older_release_are_migrated(cluster: RunningLab) -> None:
    """Owners and files of jobs and /jfs/ACCOUNT stay; the cluster's folders become root's."""
    cluster.sh("node1", "install -d -o ada -g training -m 755 /jfs/ada && echo kept > /jfs/ada/old && chown ada:training /jfs/ada/old")
    cluster.sh("node1", f"install -d -o ada -m 700 {JOBS}/old-job-0a1b2c && chmod 1777 {JOBS} && chmod 777 /jfs && chmod 1777 /jfs/primus")
    done = cluster.apply("--phase", "storage", "--phase", "scheduling")
    kept = cluster.sh("node1", f"stat -c %U /jfs/ada {JOBS}/old-job-0a1b2c && cat /jfs/ada/old").split()
    found = modes(cluster)
    cluster.sh("node1", f"rm -r /jfs/ada {JOBS}/old-job-0a1b2c")

    assert done.returncode == 0, done.stdout + done.stderr
    assert kept == ["ada", "ada", "kept"]
    assert found == LAYOUT
