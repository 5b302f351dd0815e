"""`playbooks/site.yml` defines the order of phases; the plan and Ansible agree on plays, hosts and roles."""

from __future__ import annotations

import re

import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.playbooks import hosts_of, load_phases
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.schema.groups import load_groups
from tests.playbooks import run_playbook

# All phases in order: a second copy, so that a phase is not moved by mistake.
ORDER = (
    "preflight", "baseline", "gpu", "runtime", "kubernetes", "monitoring", "storage", "gateway", "registry", "slurm", "scheduling",
    "bench", "verify",
)  # fmt: skip


def ansible_playbook(*arguments: str) -> str:
    """Return the output of `ansible-playbook` for site.yml and the mi300x example."""
    done = run_playbook(content.topologies_dir() / "mi300x" / "hosts.yaml", "site.yml", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_site_yml_imports_the_phases_in_order() -> None:
    """Every entry of site.yml imports one existing playbook, in the order of ORDER."""
    site = content.playbooks_dir() / "site.yml"
    entries = yaml.safe_load(site.read_text(encoding="utf-8"))
    names = [phase.name for phase in load_phases(content.playbooks_dir())]

    assert all(set(entry) <= {"name", "ansible.builtin.import_playbook"} for entry in entries)
    assert all(phase.path.is_file() for phase in load_phases(content.playbooks_dir()))
    assert names == [name for name in ORDER if name in names], f"enter the new or moved phase of {site} in ORDER of {__file__}"


def test_every_playbook_beside_site_yml_is_imported_by_it() -> None:
    """A phase that is not imported never runs. workload.yml is not a phase."""
    existing = {path.name for path in content.playbooks_dir().glob("*.yml")} - {"site.yml", "workload.yml"}

    imported = {phase.path.name for phase in load_phases(content.playbooks_dir())}
    assert existing == imported, f"import the playbook in {content.playbooks_dir() / 'site.yml'}"


def test_the_plan_has_ansibles_order_and_hosts() -> None:
    """For the largest example, each play has the hosts of `ansible-playbook --list-hosts`, in the same order."""
    cluster = load_cluster(content.topologies_dir() / "mi300x")
    plays = [play for phase in load_phases(content.playbooks_dir()) for play in phase.plays]
    listed = [
        set(re.findall(r"^ {6}(\S+)$", block, re.MULTILINE))
        for block in re.split(r"^  play #", ansible_playbook("--list-hosts"), flags=re.MULTILINE)[1:]
    ]
    steps = {step.phase: set(step.hosts) for step in make_plan(cluster).steps}

    assert listed == [set(hosts_of(cluster, play)) for play in plays]
    phases = [phase.name for phase in load_phases(content.playbooks_dir()) if any(hosts_of(cluster, play) for play in phase.plays)]
    assert [step.phase for step in make_plan(cluster).steps] == phases
    for phase in load_phases(content.playbooks_dir()):
        assert steps.get(phase.name, set()) == {host for play in phase.plays for host in hosts_of(cluster, play)}


def test_the_plan_has_the_roles_that_ansible_runs() -> None:
    """The plan names exactly the roles whose tasks Ansible lists."""
    listed = set(re.findall(r"^ {6}([a-z0-9_]+) : ", ansible_playbook("--list-tasks"), re.MULTILINE))

    assert {role for phase in load_phases(content.playbooks_dir()) for role in phase.roles} == listed


# Groups that a play creates with group_by.
_CREATED_GROUPS = {"registry_trust_restart"}


def test_plays_name_known_groups() -> None:
    """Ansible silently matches no host for a misspelt group."""
    known = {"all", *load_groups(), *_CREATED_GROUPS}
    named = {name for phase in load_phases(content.playbooks_dir()) for pattern in phase.patterns for name in re.split(r"[:,]", pattern)}

    assert {name.lstrip("&!").removesuffix("[0]") for name in named} <= known
