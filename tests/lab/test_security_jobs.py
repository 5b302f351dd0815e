"""Test jobs of two accounts: processes run only as the owner of the job's folder, and accounts cannot read the watchers' secrets."""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import run_cli, wait_for
from tests.lab.security_rig import BROKER, COMPUTE, JOBS, SERVICE, People, pids, slept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2700)]

TRIES = 60
# Where the watchers' key and kubeconfig may lie; on hosts without Kubernetes there is no kubeconfig.
SECRETS = "/etc/primus/workload /etc/primus-watch /var/lib/primus-watch /run/primus-watch"


@pytest.fixture(scope="module")
def waiting(people: People) -> Iterator[dict[str, str]]:
    """One waiting job each of ada and bob."""
    jobs = {name: people.submit(name, f"exec sleep {number}") for name, number in (("ada", "36001"), ("bob", "36002"))}
    for name, number in (("ada", "36001"), ("bob", "36002")):
        assert wait_for(lambda number=number: any(pids(people.lab, node, slept(number)) for node in COMPUTE), timeout_s=180, every_s=1), (  # type: ignore[misc]
            people.state(jobs[name])
        )
    yield jobs
    for job in jobs.values():
        people.cli("cancel", job)
        people.finish(job)


def key_of(people: People, job: str) -> str:
    """Return the key of a job's folder as its owner."""
    return people.lab.sh(SERVICE, f"cat {JOBS}/{job}/key")


def request(job: str, key: str, verb: str = "status", **more: Any) -> dict[str, Any]:
    """Return a request about the first attempt of a job."""
    return {"verb": verb, "job": job, "attempt": 1, "key": key, **more}


@pytest.mark.fault
def test_job_folder_belongs_to_its_user(people: People, waiting: dict[str, str]) -> None:
    """Attack 4: another account cannot read, move or replace it; the job's processes belong to its owner."""
    folder = f"{JOBS}/{waiting['bob']}"
    people.refused(
        "ada", SERVICE, f"ls {folder}", f"cat {folder}/key", f"mv {folder} {folder}-x", f"rm -rf {folder}", f"ln -s /etc {JOBS}/evil-0a1b2c"
    )
    owners = {people.lab.sh(node, f"ps -o user= -p {pid}") for node in COMPUTE for pid in pids(people.lab, node, slept("36002"))}

    assert people.lab.sh(SERVICE, f"stat -c '%U %a' {folder}") == "bob 700"
    assert owners == {"bob"}


@pytest.mark.fault
def test_broker_serves_only_the_owner_of_a_job(people: People, waiting: dict[str, str]) -> None:
    """Attacks 4 and 5: a request of ada for bob's job, with its right key, is refused and logged, and no host is contacted."""
    since = time.time()
    answer = people.ask_broker("ada", "node2", request(waiting["bob"], key_of(people, waiting["bob"]), "stop", force=True))
    own = people.ask_broker("ada", "node2", request(waiting["ada"], key_of(people, waiting["ada"])))

    assert answer["ok"] is False
    assert "does not belong to ada" in answer["error"]
    assert people.is_logged(SERVICE, "account 4101: refused", since)
    assert any(pids(people.lab, node, slept("36002")) for node in COMPUTE)
    assert own["ok"] is True, own


# What an account may send of its own: the word that the answer must have.
FORGED: list[tuple[dict[str, Any], str, str]] = [
    ({"verb": "start", "job": "../../etc-0a1b2c", "attempt": 1, "key": "x", "rank": 0}, "node2", "no valid job"),
    ({"verb": "start", "job": "other-0a1b2c", "attempt": 1, "key": "x", "rank": 0}, "node2", "No such file or directory"),
    ({"verb": "reboot", "job": "other-0a1b2c", "attempt": 1, "key": "x"}, "node2", "unknown request for a host"),
    ({"verb": "status"}, "node2", "no valid job"),
    ({"verb": "probe"}, "node1", "is not a host of workload_node"),
    ({"verb": "probe"}, "../../../root/.ssh/known_hosts", "is not a host of workload_node"),
    ({"verb": "probe"}, "-oProxyCommand=id", "is not a host of workload_node"),
]


@pytest.mark.fault(cheap=True)
@pytest.mark.parametrize(("forged", "node", "output"), FORGED)
def test_broker_refuses_forged_requests(applied_cluster: RunningLab, forged: dict[str, Any], node: str, output: str) -> None:
    """Attempts that failed: unknown hosts, verbs and jobs, and words that would be options of ssh."""
    answer = People(applied_cluster).ask_broker("ada", node, forged)

    assert answer["ok"] is False, answer
    assert output in answer["error"], answer


@pytest.mark.fault(cheap=True)
def test_account_reads_no_secret_of_the_watchers(applied_cluster: RunningLab) -> None:
    """Attack 5: key, kubeconfig, memory and environment of the broker are not readable."""
    look = f"grep -rlE 'PRIVATE KEY|client-key-data|token:' {SECRETS} 2> /dev/null"
    there = applied_cluster.sh(SERVICE, f"{look} || true")
    pid = applied_cluster.sh(SERVICE, "systemctl show --property=MainPID --value primus-watch-broker.service")
    files = f"/proc/{pid}/environ /proc/{pid}/mem /proc/{pid}/maps"
    done = applied_cluster.person(
        SERVICE, f"{look}; for file in {files}; do head -c 1 $file > /dev/null && echo $file; done; ls /proc/{pid}/fd; true"
    )

    assert "id_ed25519" in there
    assert done.stdout == ""
    assert applied_cluster.sh(SERVICE, f"ps -o user= -p {pid}").startswith("primus-w")


@pytest.mark.fault
def test_connection_settings_in_a_job_have_no_effect(people: People, waiting: dict[str, str]) -> None:
    """Attack 5: a kubeconfig in job.json with a tokenFile is read only with the account's rights."""
    folder = f"{JOBS}/{waiting['ada']}"
    kubeconfig = "/jfs/home/ada/kubeconfig"
    secret = people.lab.sh(SERVICE, f"grep -rlE 'PRIVATE KEY' {SECRETS} | head -n 1")
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "x", "user": {"tokenFile": secret}}],
    }
    edit = f"""
import json
job = json.load(open("{folder}/job.json"))
job.update(target="kubernetes", kubernetes={{"image": "x", "namespace": "default", "kubeconfig": "{kubeconfig}"}})
json.dump(job, open("{folder}/job.json", "w"))
"""
    people.allowed(
        "ada", SERVICE, f"cp {folder}/job.json /jfs/home/ada/job.json && printf %s {shlex.quote(json.dumps(text))} > {kubeconfig}"
    )
    people.allowed("ada", SERVICE, f"python3 -c {shlex.quote(edit)}")
    people.lab.execute(SERVICE, "systemctl", "restart", f"primus-watch@{waiting['ada']}.service")
    people.run("ada", SERVICE, f"timeout 10 primus-cli watch run --folder {folder}; true")
    found = people.lab.sh(SERVICE, f"cat {folder}/*.json {folder}/*.jsonl; journalctl --quiet --output=cat -u 'primus-watch*' -n 200; true")
    people.allowed("ada", SERVICE, f"cp /jfs/home/ada/job.json {folder}/job.json && rm {kubeconfig}")
    people.lab.execute(SERVICE, "systemctl", "restart", f"primus-watch@{waiting['ada']}.service")

    assert "PRIVATE KEY" not in found
    assert people.lab.sh(SERVICE, f"sed -n 2p {secret}") not in found


@pytest.mark.fault
@pytest.mark.parametrize("name", ["key", "job.json"])
def test_replaced_file_does_not_change_the_account(people: People, waiting: dict[str, str], name: str) -> None:
    """Attack 3: while ada swaps her job's file with a link to bob's 60 times, root's helper acts as ada or refuses."""
    folder, bob = f"{JOBS}/{waiting['ada']}", waiting["bob"]
    since = time.time()
    flip = f"""
import os
os.chdir("{folder}")
os.link("{name}", ".own")
os.symlink("{JOBS}/{bob}/{name}", ".other")
try:
    while not os.path.exists("stop-flip"):
        for source in (".other", ".own"):
            os.link(source, ".next", follow_symlinks=False)
            os.rename(".next", "{name}")
finally:
    os.unlink("{name}")  # a rename between two names of one file does nothing
    os.rename(".own", "{name}")
    os.unlink(".other")
    os.unlink("stop-flip")
"""
    key = key_of(people, waiting["ada"])
    # On the host of the helper itself, as a process of a job of hers would be.
    people.lab.sh("node3", f"systemd-run --quiet --collect --unit=flip-{name} --uid=ada python3 -c {shlex.quote(flip)} && sleep 1")
    try:
        answers = [people.ask_helper("node3", request(waiting["ada"], key, "start", rank=0, user="ada")) for _ in range(TRIES)]
    finally:
        people.lab.sh(
            "node3", f"runuser -u ada -- touch {folder}/stop-flip; for i in $(seq 30); do [ -e {folder}/stop-flip ] || break; sleep 1; done"
        )
    units = people.lab.sh("node3", "systemctl list-units --plain --no-legend 'primus-job-*' | awk '{print $1}'").split()
    users = {people.lab.sh("node3", f"systemctl show --property=User --value {unit}") for unit in units if waiting["ada"] in unit}

    assert users <= {"4101", "ada"}, users
    assert all(answer["ok"] or "fix" in answer for answer in answers)
    assert any(not answer["ok"] for answer in answers), "the file never flipped at the right moment: the test shows nothing"
    assert people.is_logged("node3", "refused", since, identifier="primus-unit")


@pytest.mark.fault
@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"user": "bob"}, "the request is from bob"),
        ({"key": "0" * 64}, "the key is not the job's key"),
        ({"job": "../../etc-0a1b2c"}, "has no valid job, attempt and key"),
        ({"job": "evil-0a1b2c"}, "no such job"),
        ({"verb": "exec"}, "unknown request"),
        ({"attempt": True}, "has no valid job, attempt and key"),
        ({"verb": "start", "rank": 99}, "not a node of the job"),
    ],
)
def test_helper_refuses_forged_requests(people: People, waiting: dict[str, str], changes: dict[str, Any], output: str) -> None:
    """Attempts that failed: the broker's key works only for matching jobs; refusals are logged."""
    since = time.time()
    answer = people.ask_helper("node3", {**request(waiting["ada"], key_of(people, waiting["ada"])), **changes})

    assert answer["ok"] is False
    assert output in answer["error"], answer
    assert people.is_logged("node3", "refused", since, identifier="primus-unit")


@pytest.mark.fault
@pytest.mark.parametrize("user", ["bob", "root", "primus"])
def test_job_with_another_user_does_not_run(people: People, waiting: dict[str, str], user: str) -> None:
    """Attempts that failed: an edited `user` in job.json does not change the account."""
    folder = f"{JOBS}/{waiting['ada']}"
    edit = f'sed -i.kept \'s/"user": *"ada"/"user": "{user}"/\' {folder}/job.json'
    people.allowed("ada", SERVICE, edit)
    answer = people.ask_helper("node3", request(waiting["ada"], key_of(people, waiting["ada"]), "start", rank=0))
    people.allowed("ada", SERVICE, f"mv {folder}/job.json.kept {folder}/job.json")

    assert answer["ok"] is False
    assert f"of {user}" in answer["error"], answer


@pytest.mark.fault
@pytest.mark.parametrize("account", ["primus", "root", "daemon"])
def test_only_named_accounts_have_jobs(people: People, account: str) -> None:
    """Attack 3: a folder of the administrator or a system account starts nothing, and submit refuses it."""
    job = "forged-0a1b2c"
    people.lab.sh(SERVICE, f"rm -rf {JOBS}/{job}; cp -r {JOBS}/$(ls {JOBS} | head -n 1) {JOBS}/{job}")
    people.lab.sh(
        SERVICE, f'cd {JOBS}/{job} && sed -i \'s/"id": *"[^"]*"/"id": "{job}"/; s/"user": *"[^"]*"/"user": "{account}"/\' job.json'
    )
    people.lab.sh(SERVICE, f"chown -R {account}: {JOBS}/{job} && chmod 700 {JOBS}/{job}")
    answer = people.ask_helper("node3", request(job, people.lab.sh(SERVICE, f"cat {JOBS}/{job}/key"), "start", rank=0))
    people.lab.sh(SERVICE, f"rm -r {JOBS}/{job}")
    done = people.cli(
        "submit", "debug-dense", "-e", f"workload_user={account}", "-e", "workload_target=direct", "-e", "workload_gpus_per_node=0"
    )

    assert answer["ok"] is False, answer
    assert done.returncode != 0
    assert account in done.stdout + done.stderr


@pytest.mark.fault
@pytest.mark.parametrize("name", ["job.json", "state.json", "events.jsonl"])
def test_pipe_in_a_job_folder_does_not_block(people: People, waiting: dict[str, str], name: str) -> None:
    """Attack 8: `list` ends in time with the other jobs, a job can be submitted, and no root process waits."""
    folder = f"{JOBS}/{waiting['ada']}"
    people.lab.execute(SERVICE, "systemctl", "stop", f"primus-watch@{waiting['ada']}.service")
    people.allowed("ada", SERVICE, f"mv {folder}/{name} {folder}/{name}.kept; mkfifo {folder}/{name}")
    started = time.monotonic()
    listed = run_cli("workload", "list", str(people.lab.hosts_file), "--json", timeout_s=120)
    seconds = time.monotonic() - started
    more = people.submit("bob", "true")
    phase = people.finish(more)
    blocked = people.lab.sh(SERVICE, "ps -o pid=,args= -U root | grep -E '[p]rimus-cli|[h]ead --bytes' | grep -v broker || true")
    people.allowed("ada", SERVICE, f"mv -f {folder}/{name}.kept {folder}/{name} || rm -f {folder}/{name}")
    people.lab.execute(SERVICE, "systemctl", "start", f"primus-watch@{waiting['ada']}.service")

    assert listed.returncode == 0, listed.stderr
    assert {waiting["ada"], waiting["bob"]} <= {job["id"] for job in json.loads(listed.stdout)["jobs"]}
    assert seconds < 60
    assert phase == "done"
    assert blocked == ""


@pytest.mark.fault(cheap=True)
def test_account_cannot_create_job_folders(applied_cluster: RunningLab) -> None:
    """Attack 8: only root creates folders of jobs."""
    done = applied_cluster.person(SERVICE, f"mkdir {JOBS}/evil-abcdef && mkfifo {JOBS}/evil-abcdef/job.json")

    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    assert applied_cluster.execute(SERVICE, "test", "-e", f"{JOBS}/evil-abcdef").returncode == 1
    assert applied_cluster.execute(SERVICE, "test", "-S", BROKER).returncode == 0
