"""The data files of primus_bootstrap/launch are consistent, and the controller can parse the records of launch."""

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
from primus_bootstrap.launch.detect import gpus, nic_families, profiles, verify_env

DATA = Path(gpus.__file__).parents[1] / "data"
ROLE = content.roles_dir() / "gpu_env"
SECTIONS = [(file, name) for file in ("base", "vendors", "models", "networks", "nics") for name in profiles.profile_data(file)]
FACTS = {"socket_interface", "nccl_socket_interface", "hca_list", "gid_index"}
MODELS = {
    "MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI308X", "MI325X", "MI350X", "MI355X",
    "A100", "H100", "H200", "B200", "GB200", "L40S", "MI350P", "A2", "A10", "A16", "A30", "A40", "A800", "L2", "L4", "L20", "L40", "H20",
    "H800", "GH200", "B100", "B300", "GB300", "GB10", "RTX-PRO-6000",
}  # fmt: skip

# Variables that other launchers set for every job and this project does not; see docs/profiles.md.
LEFT_OUT = {
    "NCCL_CHECKS_DISABLE", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_AVOID_RECORD_STREAMS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_PXN_DISABLE",
    "NCCL_CROSS_NIC", "RCCL_MSCCL_ENABLE", "RCCL_MSCCLPP_ENABLE", "NCCL_NVLS_ENABLE",
}  # fmt: skip


@pytest.mark.parametrize(("file", "section"), SECTIONS)
def test_every_entry_has_a_value_a_reason_and_a_source(file: str, section: str) -> None:
    """An entry has no unknown keys."""
    for entry in profiles.profile_data(file)[section]:
        assert set(entry) <= {"variable", "value", "value_from", "reason", "source", "conflict", "when"}, entry
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", entry["variable"])
        assert ("value" in entry) != ("value_from" in entry), entry
        assert isinstance(entry.get("value", ""), str), f"{entry['variable']}: quote the value"
        assert entry.get("value_from", "gid_index") in FACTS
        assert len(entry["reason"]) > 20
        assert entry["source"].startswith("https://")
        assert set(entry.get("when", {})) <= {"gpus", "form"}


def test_no_layer_sets_a_variable_twice() -> None:
    """Layers are: base with one vendor, `all` with one kind of network and one family of cards, and each model."""
    base, networks = profiles.profile_data("base")["base"], profiles.profile_data("networks")
    together: list[list[Any]] = [[*base, *entries] for entries in profiles.profile_data("vendors").values()]
    together += [[*networks["all"], *entries] for name, entries in networks.items() if name != "all"]
    fabrics = [[*networks["all"], *entries] for name, entries in networks.items() if name != "all"]
    together += [[*fabric, *entries] for fabric in fabrics for entries in profiles.profile_data("nics").values()]
    together += [list(entries) for entries in profiles.profile_data("models").values()]
    for entries in together:
        counted = Counter(entry["variable"] for entry in entries)

        assert not [name for name, count in counted.items() if count > 1]


def test_every_family_of_cards_has_ids_a_source_and_variables() -> None:
    """The two files have the same families. A PCI vendor with a driver is one family."""
    families = nic_families.families()
    keys = [(one["vendor"], driver) for one in families.values() for driver in one["drivers"]]

    assert set(families) == set(profiles.profile_data("nics"))
    assert len(keys) == len(set(keys))
    for one in families.values():
        assert set(one) == {"cards", "vendor", "drivers", "source"}
        assert re.fullmatch(r"[0-9a-f]{4}", one["vendor"])
        assert one["source"].startswith("https://")


def test_conflicts_between_sources_are_documented() -> None:
    """An entry whose value another source contradicts says so in gpu.json and in docs/profiles.md."""
    page = (content.content_root() / "docs" / "profiles.md").read_text(encoding="utf-8").partition("## Conflicts between sources")[2]
    entries = [entry for file, section in SECTIONS for entry in profiles.profile_data(file)[section]]

    assert {entry["variable"] for entry in entries if "conflict" in entry} == {"HSA_NO_SCRATCH_RECLAIM"}
    assert all(f"`{entry['variable']}`" in page for entry in entries if "conflict" in entry)


def test_variables_that_harm_some_jobs_are_not_set_and_are_documented() -> None:
    """Each of these breaks or slows some jobs."""
    used = {entry["variable"] for file, section in SECTIONS for entry in profiles.profile_data(file)[section]}
    page = (content.content_root() / "docs" / "profiles.md").read_text()

    assert not used & LEFT_OUT
    assert not [name for name in LEFT_OUT if f"`{name}`" not in page]


def test_every_model_has_facts_ids_and_a_profile() -> None:
    """Ids, facts, profiles and the role's choices contain the same models."""
    catalogue = gpus.catalogue()
    by_id = {model for entry in catalogue["ids"].values() for model in entry["models"]}
    choices = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]["gpu_env_model"][
        "choices"
    ]

    kueue = yaml.safe_load((content.roles_dir() / "kueue/meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(kueue["kueue_flavors"]["options"]["model"]["choices"]) == MODELS
    assert set(catalogue["models"]) == by_id == set(profiles.profile_data("models")) == set(choices) - {"auto"} == MODELS


def test_every_id_and_model_names_its_source() -> None:
    """A source is a key of `sources` with a URL; ids are in lower case, as in sysfs."""
    catalogue = gpus.catalogue()
    for key, entry in {**catalogue["ids"], **catalogue["models"]}.items():
        assert catalogue["sources"][entry["source"]].startswith("https://"), key
    assert all(re.fullmatch(r"(1002|10de):[0-9a-f]{4}", key) for key in catalogue["ids"])


PCI_IDS = Path("/usr/share/misc/pci.ids")
# A product of pci.ids in brackets that is a data-centre GPU of 2020 or later.
DATA_CENTRE = re.compile(r"Instinct MI([13]\d\d|2[15]0)|\[(A\d+|A?[HBL]\d+|G[BH]\d+|RTX PRO 6000)\b")
# Not GPUs of their own, engineering samples, and products for which no source gives an architecture.
WITHOUT_MODEL = {
    "10de:1af1": "an NVSwitch", "10de:22a3": "an NVSwitch", "10de:20f0": "a sample of A100", "10de:20f2": "a sample of A100",
    "10de:2345": "a sample of GH200", "10de:26b8": "L40G, for cloud gaming", "10de:26bb": "L30, never sold", "10de:27b7": "L16, never sold",
    "10de:2bb2": "RTX PRO 6000D, a workstation card", "10de:2bbc": "RTX PRO 6000D, a workstation card",
}  # fmt: skip


@pytest.mark.skipif(not PCI_IDS.is_file(), reason=f"{PCI_IDS} is missing (Debian: pci.ids)")
def test_every_data_centre_gpu_of_pci_ids_is_known() -> None:
    """Lists the ids to add. The catalogue follows pci.ids of 2026-08-22; an older file on this machine has fewer."""
    vendor, missing = "", {}
    for line in PCI_IDS.read_text(encoding="utf-8", errors="replace").splitlines():
        if re.match(r"[0-9a-f]{4} ", line):
            vendor = line[:4]
        elif vendor in ("1002", "10de") and (found := re.match(r"\t([0-9a-f]{4})  (.*)", line)) and DATA_CENTRE.search(found[2]):
            missing[f"{vendor}:{found[1]}"] = found[2]

    assert {key: name for key, name in missing.items() if key not in gpus.catalogue()["ids"] and key not in WITHOUT_MODEL} == {}


def test_amd_virtual_functions_are_known_for_every_model_that_has_them() -> None:
    """MI210 and the MI300 and MI350 families."""
    virtual = {model for entry in gpus.catalogue()["ids"].values() if entry.get("virtual") for model in entry["models"]}

    assert virtual == {"MI210", "MI300X", "MI308X", "MI325X", "MI350X", "MI355X"}


def test_no_data_file_contains_a_key_twice() -> None:
    """PyYAML silently uses the last of two equal keys."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(map(str, keys))), f"{node.start_mark}: {keys}"
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Strict.add_constructor("tag:yaml.org,2002:map", mapping)
    for path in DATA.rglob("*.yml"):
        yaml.load(path.read_text(), Strict)  # noqa: S506 - a SafeLoader


def test_the_controller_can_parse_the_records_of_host_env(tmp_path: Path) -> None:
    """parse_verdict changes no record of a real run."""
    command = [sys.executable, "-m", "primus_bootstrap.launch.detect.host_env", "--sysfs", "/", "--out", str(tmp_path), "--check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    printed = json.loads(done.stdout)["verdicts"]

    assert {record["check"] for record in printed} >= {"gpu_model", "rdma_ports", "socket_interface"}
    assert [verdicts.parse_verdict(record).to_json() for record in printed] == printed


def test_the_controller_can_parse_the_records_of_verify_env(tmp_path: Path) -> None:
    """On a host without gpu_env it fails with a fix."""
    found = verify_env.verify(tmp_path)

    assert [(record.check, record.verdict) for record in found] == [("gpu_facts", "fail")]
    assert found[0].fix
    assert verdicts.parse_verdict(found[0].to_json()).to_json() == found[0].to_json()


def test_the_playbook_contains_hosts_and_roles_only() -> None:
    """playbooks/gpu.yml has at most 40 lines and no `when`."""
    text = (content.playbooks_dir() / "gpu.yml").read_text()
    plays = yaml.safe_load(text)

    assert len(text.splitlines()) <= 40
    wired = {play["hosts"].removesuffix(content.NARROWED): [role["role"] for role in play["roles"]] for play in plays}
    jobs = {"gpu_node:slurm_node": ["node_health"], "gpu_node:slurm_login:primus_watch:workload_node": ["primus_cli"]}
    assert wired == {"gpu_node": ["gpu_env"], **jobs}
    assert "when:" not in text


def test_models_that_share_an_id_get_their_common_entries_only() -> None:
    """MI250 and MI250X have the same entries; MI250 and MI100 have none in common."""
    both = [entry["variable"] for entry in profiles._shared_entries(["MI250", "MI250X"])]

    assert both == ["HSA_NO_SCRATCH_RECLAIM"]
    assert profiles._shared_entries(["MI250", "MI100"]) == []


@pytest.mark.parametrize(
    ("arch", "variables"),
    [("gfx90a", ["HSA_NO_SCRATCH_RECLAIM"]), ("gfx942", ["HSA_NO_SCRATCH_RECLAIM"]), ("gfx950", ["RCCL_WARP_SPEED_AUTO"])],
)
def test_every_model_of_an_architecture_has_its_variables(arch: str, variables: list[str]) -> None:
    """They work around errors of ROCm for the architecture, which all its models have."""
    models = [name for name, facts in gpus.catalogue()["models"].items() if facts.get("arch") == arch]
    found = {name: [entry["variable"] for entry in profiles.profile_data("models")[name]] for name in models}

    assert found == dict.fromkeys(models, variables)
    assert models
