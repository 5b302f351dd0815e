#!/usr/bin/python
"""Remove from an existing Kubernetes cluster what one hosts.yaml installed: the Ansible module `kube_uninstall`.

Own module: kubernetes.core has no module that finds all objects with a label and removes them in a safe order.

Only objects with the cluster's label (kube_mark) are removed, in this order: custom resources while their controllers still run, releases
in the given order, other objects, resource definitions without objects, empty namespaces. Everything else is kept and reported. The
module can be killed and run again at any time, because the record of a release is removed last.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, api_client, ask, reason_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError
from ansible.module_utils.kube_discovery import is_owned_or_deleted, kind_of, kinds_of, labelled_objects, list_objects, namespace_content
from ansible.module_utils.kube_fields import documents, title
from ansible.module_utils.kube_mark import CLUSTER_LABEL, KEEP_LABEL, RELEASE_LABEL, has_cluster_label, label_value
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

POLL_S = 1.0
DEFINITION = "CustomResourceDefinition"
_KEEP_POLICY = {"helm.sh/resource-policy": "keep"}


class StopError(Exception):
    """The reset cannot continue; the message says why. What was removed so far stays removed."""


class Reset:
    """A reset of what one hosts.yaml installed in a cluster."""

    def __init__(self, module: AnsibleModule) -> None:
        """Read the objects with the cluster's label, and the manifests of its releases."""
        self.params, self.module = module.params, module
        self.cluster = Cluster(module.params["kubeconfig"], dry_run=module.check_mode)
        self.api = api_client(module.params["kubeconfig"])
        self.removed: list[str] = []
        self.removed_uids: set[str] = set()
        self.kept: list[tuple[str, str, str]] = []
        self.kinds, unknown = kinds_of(self.api)
        self.found, unread = labelled_objects(self.api, self.kinds, self.params["cluster"])
        for what, why in (*unknown, *unread):
            self.keep(
                what,
                f"it could not be read, so objects of this cluster may remain: {why}",
                "repair the API that serves it, then reset again",
            )
        self.records = sorted((one for one in self.found if RELEASE_LABEL in one["metadata"]["labels"]), key=self._position)
        self.manifests = {one["metadata"]["uid"]: self._manifest(one) for one in self.records}

    def _position(self, record: dict[str, Any]) -> tuple[int, str]:
        role, order = (record.get("data") or {}).get("role", ""), self.params["order"]
        return (order.index(role) if role in order else -1), title(record)

    def helm(self, *words: str, namespace: str) -> tuple[int, str, str]:
        """Run Helm."""
        environment = {"KUBECONFIG": self.params["kubeconfig"]}
        found: tuple[int, str, str] = self.module.run_command(
            [self.params["helm"], *words, "--namespace", namespace], environ_update=environment
        )
        return found

    def _manifest(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the objects of a release; an empty list if the release no longer exists."""
        name, namespace = record["metadata"]["labels"][RELEASE_LABEL], record["metadata"]["namespace"]
        code, out, err = self.helm("get", "manifest", name, namespace=namespace)
        if code and "not found" not in err:
            raise StopError(f"helm get manifest {name}: {err.strip()}. Fix: see `helm history {name} --namespace {namespace}`")
        return [] if code else [one for one in documents(out) if one.get("metadata")]

    def keep(self, what: str, why: str, fix: str) -> None:
        """Report something that is kept."""
        self.kept.append((what, why, fix))

    def remove(self, objects: Iterable[dict[str, Any]], why_it_stays: str) -> None:
        """Delete objects and wait until they no longer exist."""
        doomed = list(objects)
        self.removed_uids |= {one["metadata"]["uid"] for one in doomed}
        for one in doomed:
            self.removed.append(title(one))
            if not self.module.check_mode:
                self.cluster.delete(one)
        self.wait(lambda: [one for one in doomed if self._exists(one)], why_it_stays)

    def _exists(self, obj: dict[str, Any]) -> bool:
        live = self.cluster.live(obj)
        return bool(live and live["metadata"]["uid"] == obj["metadata"]["uid"])

    def wait(self, remaining: Callable[[], list[dict[str, Any]]], why: str) -> None:
        """Wait until `remaining` returns nothing.

        Raises:
            StopError: It still returns objects after the timeout.
        """
        end = time.monotonic() + self.params["timeout_s"]
        while not self.module.check_mode and (left := remaining()):
            if time.monotonic() > end:
                raise StopError(f"still there after {self.params['timeout_s']} s: {_names(left)}. Fix: {why}, then reset again")
            time.sleep(POLL_S)


def check_foreign_objects(reset: Reset) -> None:
    """Stop before any change if removing a release's definitions would delete objects of others."""
    ours = {one["metadata"]["labels"][RELEASE_LABEL] for one in reset.records}
    lost = []
    for one in [one for objects in reset.manifests.values() for one in objects if one["kind"] == DEFINITION and not _has_keep_policy(one)]:
        lost += [it for it in _objects_of(reset, one) if not is_owned_or_deleted(it) and not _is_ours(reset, it, ours)]
    if lost:
        raise StopError(
            f"the resource definitions of these releases would delete objects of others: {_names(lost)}. "
            "Nothing was changed. Fix: remove those objects first, or leave the role's group out of the reset"
        )


def _objects_of(reset: Reset, definition: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return list(list_objects(reset.api, kind_of(definition)))
    except ApiException as error:
        if error.status == 404:
            return []
        raise StopError(
            f"{title(definition)}: its objects cannot be listed: {reason_of(error)}. Fix: repair the API that serves it"
        ) from None


def _is_ours(reset: Reset, obj: dict[str, Any], releases: set[str]) -> bool:
    of_release = (obj["metadata"].get("annotations") or {}).get("meta.helm.sh/release-name")
    return has_cluster_label(obj, reset.params["cluster"]) or of_release in releases


def remove_custom_objects(reset: Reset) -> None:
    """Remove objects of kinds that charts installed, while their controllers still run and can remove the finalizers."""
    builtin = {kind.group for kind in reset.kinds} - {one["spec"]["group"] for one in _definitions(reset)}
    custom = [one for one in reset.found if one["apiVersion"].rpartition("/")[0] not in builtin]
    reset.remove(custom, "end what uses them (running jobs of a queue), or check the log of their controller, which removes the finalizers")


def _definitions(reset: Reset) -> list[dict[str, Any]]:
    kind = next(kind for kind in reset.kinds if kind.name == DEFINITION)
    return list(list_objects(reset.api, kind))


def remove_releases(reset: Reset) -> None:
    """Uninstall our releases in order, and keep the volumes of their claims."""
    for record in reset.records:
        name, namespace = record["metadata"]["labels"][RELEASE_LABEL], record["metadata"]["namespace"]
        objects = reset.manifests[record["metadata"]["uid"]]
        _wait_for_unmounts(reset, objects)
        if objects:
            _label_kept_definitions(reset, objects)
            if not reset.params["delete_data"]:
                _keep_volumes(reset, objects, namespace)
            _uninstall(reset, name, namespace)
        reset.remove([record], "check its finalizers")


def _uninstall(reset: Reset, name: str, namespace: str) -> None:
    reset.removed.append(f"release {namespace}/{name}")
    if reset.module.check_mode:
        return
    code, _, err = reset.helm("uninstall", name, "--wait", "--timeout", f"{reset.params['timeout_s']}s", namespace=namespace)
    if code:
        raise StopError(f"helm uninstall {name}: {err.strip()}. Fix: see `helm status {name} --namespace {namespace}`")


def _label_kept_definitions(reset: Reset, objects: list[dict[str, Any]]) -> None:
    """Label the definitions that Helm keeps, so that they can be found after the release is uninstalled."""
    for one in [one for one in objects if one["kind"] == DEFINITION and _has_keep_policy(one)]:
        named = {"apiVersion": one["apiVersion"], "kind": DEFINITION, "metadata": {"name": one["metadata"]["name"]}}
        if not reset.module.check_mode and reset.cluster.live(named):
            labels = {CLUSTER_LABEL: label_value(reset.params["cluster"])}
            reset.cluster.apply({**named, "metadata": {**named["metadata"], "labels": labels}})


def _wait_for_unmounts(reset: Reset, objects: list[dict[str, Any]]) -> None:
    """Wait until no pod mounts a volume of a CSI driver that is removed: the pod could neither end nor write its data."""
    drivers = {one["metadata"]["name"] for one in objects if one["kind"] == "CSIDriver"}
    if not drivers:
        return

    def mounting_pods() -> list[dict[str, Any]]:
        volumes = ask(reset.api, "/api/v1/persistentvolumes")["items"]
        claims = {
            (one["spec"]["claimRef"]["namespace"], one["spec"]["claimRef"]["name"])
            for one in volumes
            if (one["spec"].get("csi") or {}).get("driver") in drivers and one["spec"].get("claimRef")
        }
        pods = [{"kind": "Pod", **one} for one in list_objects(reset.api, next(kind for kind in reset.kinds if kind.name == "Pod"))]
        return [pod for pod in pods if claims & set(_claims(pod)) and pod["status"].get("phase") not in {"Succeeded", "Failed"}]

    reset.wait(mounting_pods, "end the pods that mount its volumes")


def _claims(pod: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (pod["metadata"]["namespace"], one["persistentVolumeClaim"]["claimName"])
        for one in pod["spec"].get("volumes") or ()
        if one.get("persistentVolumeClaim")
    ]


def _keep_volumes(reset: Reset, objects: list[dict[str, Any]], namespace: str) -> None:
    """Set the reclaim policy Retain on volumes whose claims are removed with their release."""
    for claim in [one for one in objects if one["kind"] == "PersistentVolumeClaim" and not _has_keep_policy(one)]:
        where = {**claim["metadata"], "namespace": claim["metadata"].get("namespace") or namespace}
        live = reset.cluster.live({**claim, "metadata": where})
        volume = ((live or {}).get("spec") or {}).get("volumeName")
        if not volume:
            continue
        fix = f"kubectl delete persistentvolume {volume}"
        reset.keep(f"PersistentVolume {volume}", f"it holds the data of the claim {where['namespace']}/{where['name']}", fix)
        kept = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}}
        if not reset.module.check_mode:
            reset.cluster.apply({**kept, "spec": {"persistentVolumeReclaimPolicy": "Retain"}})


def remove_other_objects(reset: Reset) -> None:
    """Remove our remaining objects of built-in kinds. Generated secrets are kept together with the data that they protect."""
    later = {"Namespace", DEFINITION}
    left = [one for one in reset.found if one["metadata"]["uid"] not in reset.removed_uids and one["kind"] not in later]
    rest = [one for one in left if reset.cluster.live(one)]
    kept = [] if reset.params["delete_data"] else [one for one in rest if KEEP_LABEL in one["metadata"]["labels"]]
    for one in kept:
        fix = f"kubectl delete {one['kind'].lower()} {one['metadata']['name']} --namespace {one['metadata'].get('namespace', 'default')}"
        reset.keep(title(one), "data that needs it may be kept as well", fix)
    reset.remove([one for one in rest if one not in kept], "check their finalizers")


def remove_definitions(reset: Reset) -> None:
    """Remove the resource definitions with our label that have no objects."""
    unused = []
    for one in [one for one in _definitions(reset) if has_cluster_label(one, reset.params["cluster"])]:
        fix = f"kubectl delete crd {one['metadata']['name']}, which removes its objects too"
        try:
            objects = list(list_objects(reset.api, kind_of(one)))
        except ApiException as error:
            reset.keep(title(one), f"its objects cannot be listed: {reason_of(error)}", fix)
            continue
        if reset.module.check_mode:
            objects = [it for it in objects if not has_cluster_label(it, reset.params["cluster"])]
        if objects:
            reset.keep(title(one), f"there are objects of it: {_names(objects)}", fix)
        else:
            unused.append(one)
    reset.remove(unused, "check their finalizers")


def remove_namespaces(reset: Reset) -> None:
    """Remove our namespaces that are empty; with `delete_data` also those with objects, unless they have another Helm release."""
    empty = []
    # In check mode everything is still in them.
    for one in [] if reset.module.check_mode else [one for one in reset.found if one["kind"] == "Namespace"]:
        name = one["metadata"]["name"]
        objects, unknown = namespace_content(reset.api, kinds_of(reset.api)[0], name)
        releases = [it for it in objects if it.get("type") == "helm.sh/release.v1"]
        fix = f"kubectl delete namespace {name}, which removes all of it"
        if unknown:
            reset.keep(title(one), f"its content cannot be read: {', '.join(it.what for it in unknown)}", fix)
        elif releases or (objects and not reset.params["delete_data"]):
            reset.keep(title(one), f"it holds {_names(releases or objects)}", fix)
        else:
            empty.append(one)
    reset.remove(empty, "check which of their objects is not deleted: kubectl describe namespace NAME")


def _has_keep_policy(obj: dict[str, Any]) -> bool:
    """Return whether Helm keeps an object when its release is uninstalled."""
    return _KEEP_POLICY.items() <= (obj["metadata"].get("annotations") or {}).items()


def _names(objects: list[dict[str, Any]]) -> str:
    names = sorted(title(one) for one in objects)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def verdict(host: str, what: str, why: str, fix: str) -> dict[str, Any]:
    """Return the verdict record of something that the reset kept."""
    record = {"check": "reset.kept", "host": host, "device": what, "source": "docs/reset.md", "started": time.time()}
    return {**record, "verdict": "skipped", "expected": "as before", "found": what, "reason": f"{what}: {why}", "fix": fix}


def main() -> None:
    """Remove what is ours, and report what is kept."""
    options = {
        "kubeconfig": {"type": "path", "required": True},
        "helm": {"type": "path", "required": True},
        "cluster": {"required": True},
        "host": {"required": True},
        "order": {"type": "list", "elements": "str", "default": []},
        "delete_data": {"type": "bool", "default": False},
        "timeout_s": {"type": "int", "default": 300},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    steps = (
        check_foreign_objects, remove_custom_objects, remove_releases, remove_other_objects, remove_definitions, remove_namespaces,
    )  # fmt: skip
    reset, stopped = None, ""
    if not Path(module.params["kubeconfig"]).is_file():
        why = f"no kubeconfig at {module.params['kubeconfig']}, so the cluster was not contacted"
        fix = "if the cluster still exists, set kubernetes_kubeconfig and reset again"
        output = json.dumps({"verdicts": [verdict(module.params["host"], "what charts installed", why, fix)]})
        module.exit_json(changed=False, removed=[], stdout=output)
    try:
        reset = Reset(module)
        for step in steps:
            step(reset)
    except (ReachError, StopError) as error:
        stopped = str(error)
    except (RefusedError, ApiException, HTTPError) as error:
        stopped = f"{reason_of(error) if isinstance(error, ApiException) else error}. Fix: remove this cause, then reset again"
    removed, kept = (reset.removed, reset.kept) if reset else ([], [])
    output = json.dumps({"verdicts": [verdict(module.params["host"], *one) for one in kept]})
    answer = {"changed": bool(removed), "removed": removed, "stdout": output}
    if stopped:
        module.fail_json(msg=stopped, **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
