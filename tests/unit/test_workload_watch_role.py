"""The role `primus_watch`: its files agree with ssh, sudo, systemd and the programs."""

from __future__ import annotations

import configparser
import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from primus_bootstrap import content
from primus_bootstrap.launch.watch import broker, node_agent
from primus_bootstrap.launch.watch.broker_client import SOCKET
from primus_bootstrap.launch.watch.kubernetes_objects import KINDS
from primus_bootstrap.launch.watch.targets.direct import MAX_CONNECTIONS
from tests.role_variables import trusted
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Mapping

VARS = yaml.safe_load((content.roles_dir() / "primus_watch" / "vars" / "main.yml").read_text(encoding="utf-8"))
DEFAULTS = yaml.safe_load((content.roles_dir() / "primus_watch" / "defaults" / "main.yml").read_text(encoding="utf-8"))
WORDS = "/usr/bin/python3 -I /usr/local/bin/primus-cli unit"


def test_the_keys_command_is_what_sudo_allows() -> None:
    """The key allows exactly this command."""
    keys = render(
        "primus_watch", "authorized_keys.j2", _primus_watch_public=["ssh-ed25519 AAAA primus-watch@a", "ssh-ed25519 BBBB primus-watch@b"]
    )
    rights = render("primus_watch", "sudoers.j2")

    assert [line for line in keys.splitlines() if not line.startswith("#")] == [
        f'restrict,command="sudo -n {WORDS}" ssh-ed25519 AAAA primus-watch@a',
        f'restrict,command="sudo -n {WORDS}" ssh-ed25519 BBBB primus-watch@b',
    ]
    assert [line for line in rights.splitlines() if not line.startswith("#")] == [f"primus-unit ALL=(root) NOPASSWD: {WORDS}"]


def test_the_unit_is_a_template_for_all_jobs() -> None:
    """It restarts after a crash, and not after the end of the job."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(render("primus_watch", "primus-watch@.service.j2", primus_watch_folder="/srv/jobs"))
    service = parser["Service"]

    assert service["ExecStart"] == "/usr/bin/python3 -I /usr/local/bin/primus-cli watch run --folder /srv/jobs/%i"
    assert (service["Restart"], "SupplementaryGroups" in service) == ("on-failure", False)
    assert not {"ConditionPathExists", "RequiresMountsFor", "AssertPathExists"} & set(parser["Unit"])  # It is not restarted after these.
    assert service["User"] == "nobody"
    assert int(service["TasksMax"]) >= 4 * MAX_CONNECTIONS


def test_the_node_agent_reads_the_roles_settings() -> None:
    """Path and schema agree."""
    assert Path(VARS["_primus_watch_site_file"]) == node_agent.SITE
    assert VARS["_primus_watch_site"]["schema"] == node_agent.SITE_SCHEMA
    assert set(VARS["_primus_watch_site"]) == {"schema", "folder", "min_uid", "accounts", "refuse_sudo", "properties"}


def test_the_broker_reads_the_roles_settings(tmp_path: Path) -> None:
    """Path, schema and keys agree, and so do account and socket of its unit."""
    settings = {**VARS["_primus_watch_broker_settings"], "folder": "/jfs/primus/jobs", "accounts": ["ada"], "host_keys": "/keys"}
    settings["kubernetes"] = {**settings["kubernetes"], "namespaces": ["jobs"], "storage": ["/jfs"], "groups": [44], "secrets": []}
    path = tmp_path / "broker.json"
    path.write_text(json.dumps(settings))
    read = broker.read_settings(path)
    unit_text = render("primus_watch", "primus-watch-broker.service.j2")

    assert VARS["_primus_watch_broker_settings_file"] == f"{{{{ _primus_watch_dir }}}}/{broker.SETTINGS.name}"
    assert VARS["_primus_watch_dir"] == str(broker.SETTINGS.parent)
    assert (read.accounts, read.kubernetes.namespaces, read.kubernetes.groups) == (("ada",), ("jobs",), (44,))
    assert f"RuntimeDirectory={SOCKET.parent.name}\n" in unit_text
    assert "User=primus-watch\n" in unit_text


def test_accounts_with_sudo_rules_may_not_have_jobs() -> None:
    """Nor accounts that are absent."""
    stated = [
        {"name": "ada", "uid": 1},
        {"name": "ops", "uid": 2, "sudo_rules": ["ALL=(ALL) ALL"]},
        {"name": "gone", "state": "absent"},
        {"name": "bob", "uid": 3, "sudo_rules": []},
    ]
    known = trusted({**DEFAULTS, **VARS, "primus_watch_unix_accounts": stated, "primus_watch_accounts": ["eve"]})

    assert Templar(loader=DataLoader(), variables=known).template(known["_primus_watch_accounts"]) == ["ada", "bob", "eve"]


def test_the_drop_in_sets_the_user_of_the_watcher() -> None:
    """The watcher runs as the job's user."""
    assert render("workload", "user.conf.j2", workload_user="ada").splitlines()[-2:] == ["[Service]", "User=ada"]


def test_the_kubernetes_account_may_create_every_form_and_no_more() -> None:
    """Only in the namespace of the jobs, apart from reading nodes. It cannot update objects or read Secrets."""
    text = (content.roles_dir() / "primus_watch" / "files" / "kubernetes.yml").read_text(encoding="utf-8")
    rules = {one["kind"]: one["rules"] for one in yaml.safe_load_all(text) if "rules" in one}
    rights = {(group, name): set(rule["verbs"]) for rule in rules["Role"] for group in rule["apiGroups"] for name in rule["resources"]}

    assert {(kind.group, kind.plural) for kind in KINDS} <= set(rights)
    assert set().union(*rights.values()) == {"get", "list", "create", "delete"}
    assert rights["", "pods"] == {"get", "list", "delete"}
    assert rules["ClusterRole"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]


def test_the_states_of_both_units_are_compared() -> None:
    """A unit without an answer of systemd is unknown."""
    tasks = yaml.safe_load((content.roles_dir() / "primus_watch" / "tasks" / "verify.yml").read_text(encoding="utf-8"))
    task = next(one for one in tasks if "_primus_watch_states" in one.get("vars", {}))
    units = [{"status": {"LoadState": "loaded", "ActiveState": "inactive"}}, {"status": {"LoadState": "loaded", "ActiveState": "active"}}]

    def accepts(*results: Mapping[str, object]) -> bool:
        known = {"__primus_watch_list": {"rc": 0}, "__primus_watch_loaded": {"results": list(results)}}
        templar = Templar(loader=DataLoader(), variables={**trusted(task["vars"]), **known})
        return all(templar.template(trust_as_template(f"{{{{ {one} }}}}")) for one in task["ansible.builtin.assert"]["that"])

    assert accepts(*units)
    assert not accepts(*reversed(units))
    assert not accepts(units[0], {"msg": "no answer"})
