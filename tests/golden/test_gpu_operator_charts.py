"""The charts of AMD's and NVIDIA's GPU operators accept the role's values and install one Node Feature Discovery."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from primus_bootstrap import content
from primus_bootstrap.bundle.charts import images_of
from primus_bootstrap.inventory.load import load_cluster
from tests.golden.chart_rig import FOLDER, Scope, chart_path, documented_values, render, unknown_paths

VENDORS = ("amd", "nvidia")
# The ClusterPolicy names these images, and our values do not start them: drivers, virtual machines, storage, confidential computing.
NOT_STARTED = (
    "/driver:", "/dcgm:", "/gdrdrv:", "/k8s-cc-manager:", "/k8s-driver-manager:", "/nvidia-fs:", "/nvidia-sandbox-device-plugin:",
    "/vgpu-device-manager:", "/kubevirt-gpu-device-plugin:", "/vgpu-manager:",
)  # fmt: skip


@functools.cache
def rendered(vendor: str, both: bool = False) -> tuple[Scope, Any, dict[str, Any], tuple[dict[str, Any], ...]]:  # noqa: FBT001, FBT002
    """Return the role's variables, a chart's path, the values and the rendered objects; skip the test without the chart."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set")
    vendors = [*VENDORS] if both else [vendor]
    scope = Scope(load_cluster(content.topologies_dir() / "mi300x"), "gpu_operator", _gpu_operator_active_vendors=vendors)
    prefix = f"_gpu_operator_{vendor}"
    path = chart_path(f"gpu_operator_{vendor}", scope[f"{prefix}_chart"]["name"])
    if path is None:
        pytest.skip(f"PRIMUS_CHARTS_DIR has no chart of {vendor}'s operator")
    values = scope[f"{prefix}_values"]
    names = (scope[f"gpu_operator_{vendor}_release"], scope[f"gpu_operator_{vendor}_namespace"])
    return scope, path, values, tuple(render(path, values, *names))


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_chart_of_the_operator_has_every_value(vendor: str) -> None:
    """Each path of our values is in the chart's values.yaml."""
    _, path, values, _ = rendered(vendor)

    assert set(unknown_paths(values, documented_values(path))) <= {"fullnameOverride"}


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_operator_creates_the_objects_to_wait_for(vendor: str) -> None:
    """The chart creates the Deployment and the definition that the role waits for."""
    scope, _, _, objects = rendered(vendor)
    created = {(item["kind"], item["metadata"]["name"]) for item in objects}

    assert {(item["kind"], item["name"]) for item in scope[f"_gpu_operator_{vendor}_ready"]} <= created


def test_the_device_config_matches_its_definition() -> None:
    """The chart's definition has each field of our DeviceConfig."""
    scope, _, _, objects = rendered("amd")
    [definition] = [
        item for item in objects if item["kind"] == "CustomResourceDefinition" and item["metadata"]["name"] == "deviceconfigs.amd.com"
    ]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    config = scope["_gpu_operator_amd_device_config"]["spec"]

    assert [error.message for error in jsonschema.Draft202012Validator(_closed(schema)).iter_errors(config)] == []


def _closed(schema: Any) -> Any:
    """Return a schema that rejects unknown fields."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed["additionalProperties"] = False
    return closed


def test_both_vendors_share_one_feature_discovery() -> None:
    """With both vendors AMD's chart installs it and NVIDIA's adds only rules. Without AMD, NVIDIA's chart installs it."""

    def masters(vendor: str, *, both: bool) -> int:
        objects = rendered(vendor, both)[3]
        return sum(item["kind"] == "Deployment" and item["metadata"]["name"].endswith("feature-discovery-master") for item in objects)

    assert masters("amd", both=True) + masters("nvidia", both=True) == 1
    assert masters("nvidia", both=False) == 1
    assert "NodeFeatureRule" in {item["kind"] for item in rendered("nvidia", True)[3]}  # noqa: FBT003


def test_operators_install_no_driver() -> None:
    """The hosts have drivers. AMD's chart creates no KMM and no certificate, and NVIDIA's policy disables the driver."""
    amd, nvidia = rendered("amd")[3], rendered("nvidia")[3]
    [policy] = [item for item in nvidia if item["kind"] == "ClusterPolicy"]

    assert [item["metadata"]["name"] for item in amd if item["kind"] == "Deployment" and "kmm" in item["metadata"]["name"]] == []
    assert not [item for item in amd if item["kind"] in {"Certificate", "DeviceConfig"}]
    assert policy["spec"]["driver"]["enabled"] is False
    assert policy["spec"]["daemonsets"]["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("vendor", VENDORS)
def test_fetches_list_the_images_of_the_operator(vendor: str) -> None:
    """meta/fetches.yml lists every image that the chart starts, with a tag."""
    scope, _, _, objects = rendered(vendor)
    used = {image for image in images_of(list(objects)) if not any(word in image for word in NOT_STARTED)}

    assert used - scope.images() == set()
    assert all(":" in image.rpartition("/")[2] for image in scope.images())
