"""The data of primus_bootstrap/launch holds together, and what launch writes is what the controller reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.core import verdicts
from primus_bootstrap.launch.detect import gpus, profiles, verify_env

DATA = Path(gpus.__file__).parents[1] / "data"
ROLE = content.roles_dir() / "gpu_env"
SECTIONS = [(file, name) for file in ("base", "vendors", "models", "networks") for name in profiles.profile_data(file)]
FACTS = {"socket_interface", "nccl_socket_interface", "hca_list", "gid_index"}
ASKED = {
    "MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI308X", "MI325X", "MI350X", "MI355X",
    "A100", "H100", "H200", "B200", "GB200", "L40S",
}  # fmt: skip

# Names that other launchers set for every job and that stay out, each with the reason in docs/profiles.md.
LEFT_OUT = {
    "NCCL_CHECKS_DISABLE", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_DEVICE_MAX_CONNECTIONS",
    "TORCH_NCCL_AVOID_RECORD_STREAMS", "NCCL_PXN_DISABLE", "NCCL_CROSS_NIC", "RCCL_MSCCL_ENABLE", "RCCL_MSCCLPP_ENABLE", "NCCL_NVLS_ENABLE",
}  # fmt: skip


@pytest.mark.parametrize(("file", "section"), SECTIONS)
def test_every_entry_has_a_value_a_reason_and_a_source(file: str, section: str) -> None:
    """A value nobody can explain is a value nobody dares to change."""
    for entry in profiles.profile_data(file)[section]:
        assert set(entry) <= {"variable", "value", "value_from", "reason", "source", "when"}, entry
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", entry["variable"])
        assert ("value" in entry) != ("value_from" in entry), entry
        assert isinstance(entry.get("value", ""), str), f"{entry['variable']}: quote the value"
        assert entry.get("value_from", "gid_index") in FACTS
        assert len(entry["reason"]) > 20
        assert entry["source"].startswith("https://")
        assert set(entry.get("when", {})) <= {"gpus", "form"}


def test_no_variable_stands_twice_in_what_can_meet_in_one_layer() -> None:
    """Base and one vendor share a file, `all` and one kind of network as well; each model stands alone."""
    base, networks = profiles.profile_data("base")["base"], profiles.profile_data("networks")
    together: list[list[Any]] = [[*base, *entries] for entries in profiles.profile_data("vendors").values()]
    together += [[*networks["all"], *entries] for name, entries in networks.items() if name != "all"]
    together += [list(entries) for entries in profiles.profile_data("models").values()]
    for entries in together:
        counted = Counter(entry["variable"] for entry in entries)

        assert not [name for name, count in counted.items() if count > 1]


def test_what_is_left_out_on_purpose_stays_out_and_is_explained() -> None:
    """Each of these breaks or slows some job when it is set for all of them."""
    used = {entry["variable"] for file, section in SECTIONS for entry in profiles.profile_data(file)[section]}
    page = (content.content_root() / "docs" / "profiles.md").read_text()

    assert not used & LEFT_OUT
    assert not [name for name in LEFT_OUT if f"`{name}`" not in page]


def test_every_model_has_facts_ids_and_a_profile() -> None:
    """The models of the ids, of the facts, of the profiles and of the role's choices are the same, and none is missing."""
    catalogue = gpus.catalogue()
    by_id = {model for entry in catalogue["ids"].values() for model in entry["models"]}
    choices = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]["gpu_env_model"][
        "choices"
    ]

    assert set(catalogue["models"]) == by_id == set(profiles.profile_data("models")) == set(choices) - {"auto"} == ASKED


def test_every_id_and_model_names_its_source() -> None:
    """A source is a key of `sources`, whose value is an address; ids are lower case, as sysfs is compared."""
    catalogue = gpus.catalogue()
    for key, entry in {**catalogue["ids"], **catalogue["models"]}.items():
        assert catalogue["sources"][entry["source"]].startswith("https://"), key
    assert all(re.fullmatch(r"(1002|10de):[0-9a-f]{4}", key) for key in catalogue["ids"])


def test_amd_virtual_functions_are_known_for_every_model_that_has_them() -> None:
    """MI210 and the MI300 and MI350 families can be cut into virtual functions."""
    virtual = {model for entry in gpus.catalogue()["ids"].values() if entry.get("virtual") for model in entry["models"]}

    assert virtual == {"MI210", "MI300X", "MI308X", "MI325X", "MI350X", "MI355X"}


def test_no_key_is_given_twice_in_the_data() -> None:
    """YAML takes the last of two equal keys in silence."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(map(str, keys))), f"{node.start_mark}: {keys}"
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Strict.add_constructor("tag:yaml.org,2002:map", mapping)
    for path in DATA.rglob("*.yml"):
        yaml.load(path.read_text(), Strict)  # noqa: S506 - a SafeLoader


def test_the_controller_reads_what_launch_prints(tmp_path: Path) -> None:
    """Each record of a real run comes back through parse_verdict as it was."""
    command = [sys.executable, "-m", "primus_bootstrap.launch.detect.host_env", "--sysfs", "/", "--out", str(tmp_path), "--check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    printed = json.loads(done.stdout)["verdicts"]

    assert {record["check"] for record in printed} >= {"gpu_model", "rdma_ports", "socket_interface"}
    assert [verdicts.parse_verdict(record).to_json() for record in printed] == printed


def test_the_programs_own_check_speaks_the_same_records(tmp_path: Path) -> None:
    """verify-env on a host that never had gpu_env fails with a fix, in the same shape."""
    found = verify_env.verify(tmp_path)

    assert [(record.check, record.verdict) for record in found] == [("gpu_facts", "fail")]
    assert found[0].fix
    assert verdicts.parse_verdict(found[0].to_json()).to_json() == found[0].to_json()


def test_the_playbook_only_wires() -> None:
    """playbooks/gpu.yml is hosts and roles in at most 40 lines, without a `when`."""
    text = (content.playbooks_dir() / "gpu.yml").read_text()
    plays = yaml.safe_load(text)

    assert len(text.splitlines()) <= 40
    wired = {play["hosts"].removesuffix(content.NARROWED): [role["role"] for role in play["roles"]] for play in plays}
    jobs = {"gpu_node:slurm_node": ["node_health"], "gpu_node:slurm_login:primus_watch:workload_node": ["primus_cli"]}
    assert wired == {"gpu_node": ["gpu_env"], **jobs}
    assert "when:" not in text


def test_models_that_share_an_id_get_only_what_both_have() -> None:
    """MI250 and MI250X share everything; two models that differ would share nothing."""
    both = [entry["variable"] for entry in profiles._shared_entries(["MI250", "MI250X"])]

    assert both == ["HSA_NO_SCRATCH_RECLAIM"]
    assert profiles._shared_entries(["MI250", "MI100"]) == []
