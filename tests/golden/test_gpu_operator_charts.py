"""The charts of AMD's and NVIDIA's GPU operators with our values: nothing that they do not know, and one Node Feature Discovery."""

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
# Named by the ClusterPolicy and never started with our values: drivers, virtual machines, storage, confidential computing.
NOT_STARTED = (
    "/driver:", "/dcgm:", "/gdrdrv:", "/k8s-cc-manager:", "/k8s-driver-manager:", "/nvidia-fs:", "/nvidia-sandbox-device-plugin:",
    "/vgpu-device-manager:", "/kubevirt-gpu-device-plugin:", "/vgpu-manager:",
)  # fmt: skip


@functools.cache
def rendered(vendor: str, both: bool = False) -> tuple[Scope, Any, dict[str, Any], tuple[dict[str, Any], ...]]:  # noqa: FBT001, FBT002
    """Return the role's variables, where a chart lies, our values, and the objects that it makes; skipped without the chart."""
    if not FOLDER:
        pytest.skip("PRIMUS_CHARTS_DIR is not set: no real chart was rendered")
    whose = [*VENDORS] if both else [vendor]
    scope = Scope(load_cluster(content.topologies_dir() / "mi300x"), "gpu_operator", _gpu_operator_whose=whose)
    prefix = f"_gpu_operator_{vendor}"
    path = chart_path(f"gpu_operator_{vendor}", scope[f"{prefix}_chart"]["name"])
    if path is None:
        pytest.skip(f"no chart of {vendor}'s operator in PRIMUS_CHARTS_DIR: it was not rendered")
    values = scope[f"{prefix}_values"]
    names = (scope[f"gpu_operator_{vendor}_release"], scope[f"gpu_operator_{vendor}_namespace"])
    return scope, path, values, tuple(render(path, values, *names))


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_operators_chart_knows_every_value(vendor: str) -> None:
    """A value that no template reads is a wish that nobody hears."""
    _, path, values, _ = rendered(vendor)

    assert set(unknown_paths(values, documented_values(path))) <= {"fullnameOverride"}


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_is_waited_for_comes(vendor: str) -> None:
    """The Deployment and the definition that the role waits for are made by the chart, under these names."""
    scope, _, _, objects = rendered(vendor)
    made = {(one["kind"], one["metadata"]["name"]) for one in objects}

    assert {(one["kind"], one["name"]) for one in scope[f"_gpu_operator_{vendor}_ready"]} <= made


def test_the_device_config_fits_amds_definition() -> None:
    """Each field of our DeviceConfig stands in the chart's own definition of it."""
    scope, _, _, objects = rendered("amd")
    [definition] = [
        one for one in objects if one["kind"] == "CustomResourceDefinition" and one["metadata"]["name"] == "deviceconfigs.amd.com"
    ]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    config = scope["_gpu_operator_amd_device_config"]["spec"]

    assert [error.message for error in jsonschema.Draft202012Validator(_closed(schema)).iter_errors(config)] == []


def _closed(schema: Any) -> Any:
    """Return a schema that allows no field that it does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed["additionalProperties"] = False
    return closed


def test_one_feature_discovery_comes_for_both_vendors() -> None:
    """AMD's chart brings it, NVIDIA's leaves it out and brings its rules alone; alone, NVIDIA's brings it."""

    def masters(vendor: str, *, both: bool) -> int:
        objects = rendered(vendor, both)[3]
        return sum(one["kind"] == "Deployment" and one["metadata"]["name"].endswith("feature-discovery-master") for one in objects)

    assert masters("amd", both=True) + masters("nvidia", both=True) == 1
    assert masters("nvidia", both=False) == 1
    assert "NodeFeatureRule" in {one["kind"] for one in rendered("nvidia", True)[3]}  # noqa: FBT003


def test_nothing_of_the_driver_or_of_kmm_comes() -> None:
    """The driver is the hosts' own: AMD's chart makes no KMM and no certificate, NVIDIA's policy has no driver and never upgrades one."""
    amd, nvidia = rendered("amd")[3], rendered("nvidia")[3]
    [policy] = [one for one in nvidia if one["kind"] == "ClusterPolicy"]

    assert [one["metadata"]["name"] for one in amd if one["kind"] == "Deployment" and "kmm" in one["metadata"]["name"]] == []
    assert not [one for one in amd if one["kind"] in {"Certificate", "DeviceConfig"}]
    assert policy["spec"]["driver"]["enabled"] is False
    assert policy["spec"]["daemonsets"]["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("vendor", VENDORS)
def test_images_of_the_operator_are_stated_for_bundles(vendor: str) -> None:
    """Every image that the chart starts is named by meta/fetches.yml, with a tag."""
    scope, _, _, objects = rendered(vendor)
    named = {image for image in images_of(list(objects)) if not any(word in image for word in NOT_STARTED)}

    assert named - scope.images() == set()
    assert all(":" in image.rpartition("/")[2] for image in scope.images())
