"""tools/kubespray_variables.py: which names of a release are variables that an inventory may set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.schema import groups
from tests.unit.kubespray_release_rig import checked_out_release
from tools import kubespray_variables

FILES = {
    "roles/net/defaults/main.yml": """
net_mode: "{{ 'a' if proxy_remove is defined else 'b' }}"
# net_public_ip: x
# note: prose
_private: 1
""",
    "roles/net/vars/main.yml": "net_constant: 1\nnet_other: '{{ net_constant }}'\n",
    "roles/net/tasks/main.yml": """
- command: date
  register: net_date
- when: net_date.rc == 0 and net_token is undefined
  set_fact: {net_token: "{{ net_date.stdout }}", net_fact: 1}
- assert: {that: [ipip is not defined, net_checked > 1]}
- debug: {msg: "{{ hostvars['n1']['net_of_host'] }} {{ hostvars[item].get('x') }} {{ ansible_user }}"}
  loop: "{{ net_list }}"
- import_role: {name: other}
  vars: {net_passed: "{{ net_fact }}"}
""",
    "roles/net/templates/x.j2": "{% set local = net_read %}{{ local }}{% macro shown(x) %}{{ x }}{% endmacro %}{{ shown(net_shown) }}",
    "roles/net/files/copied.yml": "copied: '{{ net_copied }}'\n",
    "roles/net/molecule/default/converge.yml": "- hosts: all\n  tasks: [{debug: {msg: '{{ net_ci }}'}}]\n",
    "playbooks/x.yml": "- hosts: '{{ node | default(0) }}'\n  serial: '{{ net_serial }}'\n  roles: [{role: net, net_parameter: 1}]\n",
    "inventory/sample/group_vars/all.yml": "sample_set: 1\n# sample_comment: 2\n",
    "test-infra/roles/ci/defaults/main.yml": "docker_user: x\n",
    "docs/operations/offline-environment.md": "`registry: {{ registry_user }}`\n",
}


def test_names_are_those_that_an_inventory_may_set(tmp_path: Path) -> None:
    """Defaults, the sample, and what is read; not what the release sets itself, refuses, only copies, or uses in its CI."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    found = kubespray_variables.variables(tmp_path)

    assert found == [
        *("net_checked", "net_list", "net_mode", "net_of_host", "net_public_ip", "net_read", "net_shown", "net_token", "proxy_remove"),
        *("registry_user", "sample_comment", "sample_set"),
    ]


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # patterns in the release's templates
@pytest.mark.skipif(not os.environ.get("PRIMUS_KUBESPRAY_DIR"), reason="PRIMUS_KUBESPRAY_DIR is not a checkout of Kubespray")
def test_list_matches_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    """The data file is the tool's output for the default release; for the others, kubespray_releases.yml has the differences."""
    folder = Path(os.environ["PRIMUS_KUBESPRAY_DIR"])
    release = load_release(checked_out_release(folder))
    text = Path(groups.__file__).parents[1].joinpath("data", "kubespray_variables.yml").read_text(encoding="utf-8")
    kubespray_variables.main([str(folder), release.version])
    found = capsys.readouterr().out

    assert set(yaml.safe_load(found)) == (set(yaml.safe_load(text)) | release.added) - release.removed - release.renamed.keys()
    assert release != load_release() or found == text
