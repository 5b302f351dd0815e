"""Role `trainer`: objects generated for the runtimes of hosts.yaml."""

from __future__ import annotations

from tests.unit.kueue_rig import plugin

trainer = plugin("trainer", "trainer")


def test_runtime_has_the_fields_of_trainer() -> None:
    """Job and container have the name `node` and the step's label; shared memory is mounted, and the site's fields are added."""
    stated = {
        "name": "torch-rocm",
        "image": "registry.example.com/train:1",
        "nodes": 2,
        "shm_gib": 16,
        "pod_spec": {"hostNetwork": True, "volumes": [{"name": "data", "hostPath": {"path": "/data"}}]},
        "container": {"env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    }

    made = trainer.trainer_runtime(stated)
    [job] = made["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert made["metadata"]["labels"]["trainer.kubeflow.org/framework"] == "torch"
    assert made["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    assert (job["name"], container["name"]) == ("node", "node")
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert [one["name"] for one in pod["volumes"]] == ["shm", "data"]
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "16Gi"
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/dev/shm", "/data"]  # noqa: S108 - the path that collectives know
    assert (pod["hostNetwork"], container["env"]) == (True, [{"name": "A", "value": "b"}])


def test_runtime_needs_a_name_and_an_image_only() -> None:
    """The defaults are one node and 64 GiB of shared memory."""
    made = trainer.trainer_runtime({"name": "a", "image": "b:1"})
    pod = made["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]

    assert made["spec"]["mlPolicy"]["numNodes"] == 1
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]
