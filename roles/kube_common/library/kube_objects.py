#!/usr/bin/python
"""Apply objects to Kubernetes, read them back, and wait for others: the Ansible module `kube_objects`.

Own module: `kubernetes.core.k8s` does not notice that a server silently dropped a field that it does not know. This module reads back
every field, and fails with the names of the dropped ones.

Objects are applied server-side with the field manager `primus-bootstrap`. `state: kept` creates an object only if it does not exist.
Objects that did not exist before get a label with the cluster's name (kube_mark). Check mode uses `dryRun=All`; an object whose kind or
namespace does not exist yet counts as a change.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError
from ansible.module_utils.kube_cluster import Cluster, RefusedError, apply_objects, remove_objects, wait_for
from ansible.module_utils.kube_fields import documents
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def chart_definitions(path: Path, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the resource definitions in `crds/` of a chart and its subcharts, from its folder or archive.

    Args:
        path: The chart.
        without: Subcharts that the values disable. Their definitions are left out, as Helm does.
    """
    files = [
        (name, text) for name, text in sorted(_chart_files(path)) if _is_definition_file(name) and not {*Path(name).parts} & {*without}
    ]
    found = [one for _, text in files for one in documents(text)]
    return [one for one in found if one.get("kind") == "CustomResourceDefinition"]


def _is_definition_file(name: str) -> bool:
    parts = Path(name).parts
    return "crds" in parts[:-1] and "templates" not in parts and parts[-1].endswith((".yaml", ".yml"))


def _chart_files(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the definition files of a chart, and those of archives in its `charts/`."""
    if path.is_dir():
        for file in path.rglob("*"):
            if file.suffix == ".tgz":
                yield from _archived(file.read_bytes())
            elif file.is_file() and _is_definition_file(str(file.relative_to(path))):
                yield str(file.relative_to(path)), file.read_text(encoding="utf-8")
    else:
        yield from _archived(path.read_bytes())


def _archived(content: bytes) -> Iterator[tuple[str, str]]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            inner = archive.extractfile(member) if member.isfile() else None
            if inner is None:
                continue
            if member.name.endswith(".tgz"):
                yield from _archived(inner.read())
            elif _is_definition_file(member.name):
                yield member.name, inner.read().decode()


def all_objects(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of the options `chart`, `files` and `objects`."""
    read = [one for file in params["files"] for one in documents(Path(file).read_text(encoding="utf-8"))]
    return [*(chart_definitions(Path(params["chart"]), params["without"]) if params["chart"] else []), *read, *params["objects"]]


def main() -> None:
    """Apply or remove the objects, then wait for `ready`."""
    options = {
        "kubeconfig": {"type": "path", "required": True},
        "state": {"choices": ["present", "kept", "absent"], "default": "present"},
        "objects": {"type": "list", "elements": "dict", "default": []},
        "files": {"type": "list", "elements": "path", "default": []},
        "chart": {"type": "path", "default": ""},
        "without": {"type": "list", "elements": "str", "default": []},
        "ready": {"type": "list", "elements": "dict", "default": []},
        "timeout_s": {"type": "int", "default": 600},
        "mark": {"default": ""},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    params = module.params
    try:
        cluster = Cluster(params["kubeconfig"], dry_run=module.check_mode)
        objects, state = all_objects(params), params["state"]
        if state == "absent":
            result = remove_objects(cluster, objects)
        else:
            result = apply_objects(cluster, objects, create_only=state == "kept", owner=params["mark"])
        missing = [] if module.check_mode else wait_for(cluster, params["ready"], params["timeout_s"])
    except (ReachError, RefusedError, OSError, HTTPError) as error:
        module.fail_json(msg=str(error))
    diff = {"prepared": "\n".join(result.pop("diffs"))}
    answer = {"changed": bool(result["applied"]), **result, **({"diff": diff} if diff["prepared"] else {})}
    if result["dropped"]:
        names = "; ".join(result["dropped"])
        module.fail_json(msg=f"the API server dropped fields that it does not know: {names}. Fix: install a newer Kubernetes or resource "
                         "definition, or remove the setting", **answer)  # fmt: skip
    if missing:
        module.fail_json(msg=f"not ready after {params['timeout_s']} s: {'; '.join(missing)}", **answer)
    for one in result["altered"]:
        module.warn(f"{one}: something in the cluster changed the value that was applied")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
