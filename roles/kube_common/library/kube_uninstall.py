#!/usr/bin/python
"""Take off a Kubernetes cluster that stays what one hosts.yaml brought to it: the Ansible module `kube_uninstall`.

Only what bears the cluster's mark goes (kube_mark): custom resources while those still run who let them go, then releases in the order
that is given, then other objects, then definitions of which nobody has an object, then namespaces in which nothing is left. Whatever is
not certain to be ours stays and is named. It may be ended at any moment and begun again: a release's mark goes last.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_brought import all_marked, is_made_by_another, kind_of, kinds_of, left_in, listed
from ansible.module_utils.kube_client import ReachError, api_client, ask, reason_of
from ansible.module_utils.kube_cluster import Cluster, RefusedError
from ansible.module_utils.kube_fields import documents, title
from ansible.module_utils.kube_mark import CLUSTER, KEPT, RELEASE, is_marked, label_of
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

POLL_S = 1.0
DEFINITION = "CustomResourceDefinition"
_KEEPS = {"helm.sh/resource-policy": "keep"}


class StopError(Exception):
    """It cannot go on; what was taken away so far stays away, and the message says what is in the way."""


class Reset:
    """A reset of what one hosts.yaml brought to a cluster."""

    def __init__(self, module: AnsibleModule) -> None:
        """Read what is there."""
        self.params, self.module = module.params, module
        self.cluster = Cluster(module.params["kubeconfig"], look_only=module.check_mode)
        self.api = api_client(module.params["kubeconfig"])
        self.removed: list[str] = []
        self.gone: set[str] = set()
        self.kept: list[tuple[str, str, str]] = []
        self.kinds, unknown = kinds_of(self.api)
        self.found, unread = all_marked(self.api, self.kinds, self.params["cluster"])
        for what, why in (*unknown, *unread):
            self.keep(what, f"it could not be read, so nobody knows what of it is ours: {why}", "mend what answers for it, reset again")
        self.records = sorted((one for one in self.found if RELEASE in one["metadata"]["labels"]), key=self._turn)
        self.manifests = {one["metadata"]["uid"]: self._manifest(one) for one in self.records}

    def _turn(self, record: dict[str, Any]) -> tuple[int, str]:
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
        """Return a release's objects; none where the release is gone already."""
        name, namespace = record["metadata"]["labels"][RELEASE], record["metadata"]["namespace"]
        code, out, err = self.helm("get", "manifest", name, namespace=namespace)
        if code and "not found" not in err:
            raise StopError(f"helm get manifest {name}: {err.strip()}. Fix: see `helm history {name} --namespace {namespace}`")
        return [] if code else [one for one in documents(out) if one.get("metadata")]

    def keep(self, what: str, why: str, fix: str) -> None:
        """Name what stays."""
        self.kept.append((what, why, fix))

    def remove(self, objects: Iterable[dict[str, Any]], why_it_stays: str) -> None:
        """Delete objects and wait until they are gone."""
        going = list(objects)
        self.gone |= {one["metadata"]["uid"] for one in going}
        for one in going:
            self.removed.append(title(one))
            if not self.module.check_mode:
                self.cluster.delete(one)
        self.wait(lambda: [one for one in going if self._is_there(one)], why_it_stays)

    def _is_there(self, obj: dict[str, Any]) -> bool:
        live = self.cluster.live(obj)
        return bool(live and live["metadata"]["uid"] == obj["metadata"]["uid"])

    def wait(self, look: Callable[[], list[dict[str, Any]]], why: str) -> None:
        """Wait until nothing is left of what `look` finds.

        Raises:
            StopError: something still is when time is up.
        """
        end = time.monotonic() + self.params["timeout_s"]
        while not self.module.check_mode and (left := look()):
            if time.monotonic() > end:
                raise StopError(f"still there after {self.params['timeout_s']} s: {_names(left)}. Fix: {why}, then reset again")
            time.sleep(POLL_S)


def refuse_what_others_would_lose(reset: Reset) -> None:
    """Stop before anything is touched where a release's definitions would take objects of others along."""
    ours = {one["metadata"]["labels"][RELEASE] for one in reset.records}
    lost = []
    for one in [one for objects in reset.manifests.values() for one in objects if one["kind"] == DEFINITION and not _stays(one)]:
        lost += [it for it in _objects_of(reset, one) if not is_made_by_another(it) and not _is_ours(reset, it, ours)]
    if lost:
        raise StopError(
            f"with the releases that go, their definitions would take objects of others along: {_names(lost)}. "
            "Nothing was touched. Fix: remove those first, or leave them a cluster by taking the group out of the reset"
        )


def _objects_of(reset: Reset, definition: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return list(listed(reset.api, kind_of(definition)))
    except ApiException as error:
        if error.status == 404:
            return []
        raise StopError(f"{title(definition)}: its objects cannot be listed: {reason_of(error)}. Fix: mend what answers for it") from None


def _is_ours(reset: Reset, obj: dict[str, Any], releases: set[str]) -> bool:
    of_release = (obj["metadata"].get("annotations") or {}).get("meta.helm.sh/release-name")
    return is_marked(obj, reset.params["cluster"]) or of_release in releases


def take_custom_objects(reset: Reset) -> None:
    """Remove objects of kinds that charts brought, while their controllers still run and let them go."""
    builtin = {kind.group for kind in reset.kinds} - {one["spec"]["group"] for one in _definitions(reset)}
    going = [one for one in reset.found if one["apiVersion"].rpartition("/")[0] not in builtin]
    reset.remove(going, "end what uses them (running jobs of a queue), or see why their controller does not let them go")


def _definitions(reset: Reset) -> list[dict[str, Any]]:
    kind = next(kind for kind in reset.kinds if kind.name == DEFINITION)
    return list(listed(reset.api, kind))


def take_releases(reset: Reset) -> None:
    """Uninstall our releases, each when nothing needs it any more, and keep what data its claims hold."""
    for record in reset.records:
        name, namespace = record["metadata"]["labels"][RELEASE], record["metadata"]["namespace"]
        objects = reset.manifests[record["metadata"]["uid"]]
        _wait_for_mounts(reset, objects)
        if objects:
            _mark_what_stays(reset, objects)
            if not reset.params["delete_data"]:
                _keep_volumes(reset, objects, namespace)
            _uninstall(reset, name, namespace)
        reset.remove([record], "see who holds it")


def _uninstall(reset: Reset, name: str, namespace: str) -> None:
    reset.removed.append(f"release {namespace}/{name}")
    if reset.module.check_mode:
        return
    code, _, err = reset.helm("uninstall", name, "--wait", "--timeout", f"{reset.params['timeout_s']}s", namespace=namespace)
    if code:
        raise StopError(f"helm uninstall {name}: {err.strip()}. Fix: see `helm status {name} --namespace {namespace}`")


def _mark_what_stays(reset: Reset, objects: list[dict[str, Any]]) -> None:
    """Mark the definitions that Helm leaves, so that they are found once the release is gone."""
    for one in [one for one in objects if one["kind"] == DEFINITION and _stays(one)]:
        named = {"apiVersion": one["apiVersion"], "kind": DEFINITION, "metadata": {"name": one["metadata"]["name"]}}
        if not reset.module.check_mode and reset.cluster.live(named):
            labels = {CLUSTER: label_of(reset.params["cluster"])}
            reset.cluster.apply({**named, "metadata": {**named["metadata"], "labels": labels}})


def _wait_for_mounts(reset: Reset, objects: list[dict[str, Any]]) -> None:
    """Wait until no pod mounts a volume of a driver that goes: it could neither end nor write what it holds."""
    drivers = {one["metadata"]["name"] for one in objects if one["kind"] == "CSIDriver"}
    if not drivers:
        return

    def holding() -> list[dict[str, Any]]:
        volumes = ask(reset.api, "/api/v1/persistentvolumes")["items"]
        claims = {
            (one["spec"]["claimRef"]["namespace"], one["spec"]["claimRef"]["name"])
            for one in volumes
            if (one["spec"].get("csi") or {}).get("driver") in drivers and one["spec"].get("claimRef")
        }
        pods = [{"kind": "Pod", **one} for one in listed(reset.api, next(kind for kind in reset.kinds if kind.name == "Pod"))]
        return [pod for pod in pods if claims & set(_claims(pod)) and pod["status"].get("phase") not in {"Succeeded", "Failed"}]

    reset.wait(holding, "end the pods that mount its volumes")


def _claims(pod: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (pod["metadata"]["namespace"], one["persistentVolumeClaim"]["claimName"])
        for one in pod["spec"].get("volumes") or ()
        if one.get("persistentVolumeClaim")
    ]


def _keep_volumes(reset: Reset, objects: list[dict[str, Any]], namespace: str) -> None:
    """Let a volume outlive the claim that goes with its release."""
    for claim in [one for one in objects if one["kind"] == "PersistentVolumeClaim" and not _stays(one)]:
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


def take_other_objects(reset: Reset) -> None:
    """Remove what of built-in kinds is left of ours; what was made once stays with the data that it opens."""
    aside = {"Namespace", DEFINITION}
    left = [one for one in reset.found if one["metadata"]["uid"] not in reset.gone and one["kind"] not in aside]
    rest = [one for one in left if reset.cluster.live(one)]
    kept = [] if reset.params["delete_data"] else [one for one in rest if KEPT in one["metadata"]["labels"]]
    for one in kept:
        fix = f"kubectl delete {one['kind'].lower()} {one['metadata']['name']} --namespace {one['metadata'].get('namespace', 'default')}"
        reset.keep(title(one), "what it opens may be kept as well", fix)
    reset.remove([one for one in rest if one not in kept], "see who holds them")


def take_definitions(reset: Reset) -> None:
    """Remove the definitions that we brought and of which nobody has an object."""
    going = []
    for one in [one for one in _definitions(reset) if is_marked(one, reset.params["cluster"])]:
        fix = f"kubectl delete crd {one['metadata']['name']}, which removes its objects too"
        try:
            objects = list(listed(reset.api, kind_of(one)))
        except ApiException as error:
            reset.keep(title(one), f"its objects cannot be listed: {reason_of(error)}", fix)
            continue
        if reset.module.check_mode:
            objects = [it for it in objects if not is_marked(it, reset.params["cluster"])]
        if objects:
            reset.keep(title(one), f"there are objects of it: {_names(objects)}", fix)
        else:
            going.append(one)
    reset.remove(going, "see who holds them")


def take_namespaces(reset: Reset) -> None:
    """Remove the namespaces that we made and in which nothing is left; with `delete_data` all but those with somebody's release."""
    going = []
    # In check mode all still stands in them.
    for one in [] if reset.module.check_mode else [one for one in reset.found if one["kind"] == "Namespace"]:
        name = one["metadata"]["name"]
        objects, unknown = left_in(reset.api, kinds_of(reset.api)[0], name)
        releases = [it for it in objects if it.get("type") == "helm.sh/release.v1"]
        fix = f"kubectl delete namespace {name}, which removes all of it"
        if unknown:
            reset.keep(title(one), f"what is in it cannot be read: {', '.join(it.what for it in unknown)}", fix)
        elif releases or (objects and not reset.params["delete_data"]):
            reset.keep(title(one), f"it holds {_names(releases or objects)}", fix)
        else:
            going.append(one)
    reset.remove(going, "see what in them does not go: kubectl describe namespace NAME")


def _stays(obj: dict[str, Any]) -> bool:
    """Whether Helm leaves an object where it is when its release goes."""
    return _KEEPS.items() <= (obj["metadata"].get("annotations") or {}).items()


def _names(objects: list[dict[str, Any]]) -> str:
    names = sorted(title(one) for one in objects)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def verdict(host: str, what: str, why: str, fix: str) -> dict[str, Any]:
    """Return the record under which a reset says what it left."""
    fixed = {"serial": "", "unit": "", "source": "docs/reset.md", "started": time.time(), "seconds": 0.0, "schema": "primus.verdict/1"}
    said = {"verdict": "skipped", "expected": "as before", "found": what, "reason": f"{what}: {why}", "fix": fix}
    return {"check": "reset.kept", "device": what, "host": host, **said, **fixed}


def main() -> None:
    """Take off what is ours, and say what stays."""
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
        refuse_what_others_would_lose, take_custom_objects, take_releases, take_other_objects, take_definitions, take_namespaces,
    )  # fmt: skip
    reset, stopped = None, ""
    if not Path(module.params["kubeconfig"]).is_file():
        why = f"no kubeconfig at {module.params['kubeconfig']}, so the cluster was not asked"
        fix = "where the cluster still stands, name its kubeconfig in kubernetes_kubeconfig and reset again"
        said = json.dumps({"verdicts": [verdict(module.params["host"], "what charts brought", why, fix)]})
        module.exit_json(changed=False, removed=[], stdout=said)
    try:
        reset = Reset(module)
        for step in steps:
            step(reset)
    except (ReachError, StopError) as error:
        stopped = str(error)
    except (RefusedError, ApiException, HTTPError) as error:
        stopped = f"{reason_of(error) if isinstance(error, ApiException) else error}. Fix: mend what it says, then reset again"
    removed, kept = (reset.removed, reset.kept) if reset else ([], [])
    said = json.dumps({"verdicts": [verdict(module.params["host"], *one) for one in kept]})
    answer = {"changed": bool(removed), "removed": removed, "stdout": said}
    if stopped:
        module.fail_json(msg=stopped, **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
