#!/usr/bin/python
"""List the objects of several kinds: the Ansible module `kube_list`. It changes nothing and never fails: an unreadable kind is None.

Own module: `kubernetes.core.k8s_info` reads one kind per task, without pages, and returns whole Nodes. Here a Node has only name, labels,
allocatable resources, version and its Ready condition, since images and managed fields of 12,500 Nodes would be most of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, api_client, dynamic_client, reason_of, resource_of
from ansible.module_utils.kube_discovery import Kind, list_objects
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Mapping


def slim(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without managed fields; of a Node only name, labels, allocatable resources, version, Ready condition."""
    metadata = {key: value for key, value in one["metadata"].items() if key != "managedFields"}
    if one["kind"] != "Node":
        return {**one, "metadata": metadata}
    status = one.get("status") or {}
    ready = [state for state in status.get("conditions") or () if state["type"] == "Ready"]
    name_and_labels = {key: metadata.get(key) for key in ("name", "labels")}
    version = {"kubeletVersion": (status.get("nodeInfo") or {}).get("kubeletVersion") or ""}
    kept = {"allocatable": status.get("allocatable") or {}, "conditions": ready, "nodeInfo": version}
    return {"kind": "Node", "metadata": name_and_labels, "status": kept}


def listed(api: Any, kinds: Any, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every object of a kind; an empty list if the server does not have the kind."""
    found = resource_of(kinds, wanted["api_version"], wanted["kind"])
    if found is None:
        return []
    kind = Kind(found.group, found.api_version, found.kind, found.name, found.namespaced)
    return [slim(one) for one in list_objects(api, kind, labels=wanted.get("labels") or "")]


def main() -> None:
    """List every kind that the task names."""
    options = {"kubeconfig": {"type": "path", "required": True}, "kinds": {"type": "list", "elements": "dict", "required": True}}
    module = AnsibleModule(options, supports_check_mode=True)
    found: dict[str, list[dict[str, Any]] | None] = {one["kind"]: None for one in module.params["kinds"]}
    errors = []
    try:
        api = api_client(module.params["kubeconfig"])
        kinds = dynamic_client(api)
        for one in module.params["kinds"]:
            try:
                found[one["kind"]] = listed(api, kinds, one)
            except (ApiException, DynamicApiError) as error:
                errors.append(f"{one['kind']}: {reason_of(error)}")
    except (ReachError, HTTPError, OSError) as error:
        errors.append(str(error))
    module.exit_json(changed=False, found=found, errors=errors)


if __name__ == "__main__":
    main()
