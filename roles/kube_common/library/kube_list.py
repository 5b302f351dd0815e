#!/usr/bin/python
"""What is on the cluster, kind by kind: the Ansible module `kube_list`. It changes nothing and never fails: what cannot be read is None.

Nodes come without what nobody here asks for (images, addresses, managed fields): of twelve thousand of them that is most of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, api_client, ask, dynamic_client, reason_of, resource_of
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = 500


def slim(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what the server keeps for itself; of a Node only what tells where it stands and what it offers."""
    metadata = {key: value for key, value in one["metadata"].items() if key != "managedFields"}
    if one["kind"] != "Node":
        return {**one, "metadata": metadata}
    status = one.get("status") or {}
    ready = [state for state in status.get("conditions") or () if state["type"] == "Ready"]
    kept = {key: metadata.get(key) for key in ("name", "labels")}
    return {"kind": "Node", "metadata": kept, "status": {"allocatable": status.get("allocatable") or {}, "conditions": ready}}


def listed(api: Any, kinds: Any, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return every object of a kind; none where the server has no such kind."""
    kind = resource_of(kinds, wanted["api_version"], wanted["kind"])
    if kind is None:
        return []
    found: list[dict[str, Any]] = []
    query = {"limit": str(PAGE), **({"labelSelector": wanted["labels"]} if wanted.get("labels") else {})}
    while True:
        answer = ask(api, kind.path(), **query)
        found += [slim({"apiVersion": wanted["api_version"], "kind": wanted["kind"], **one}) for one in answer["items"]]
        query["continue"] = answer["metadata"].get("continue") or ""
        if not query["continue"]:
            return found


def main() -> None:
    """Read what the task names."""
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
