#!/usr/bin/python
"""Have objects in Kubernetes, wait for others, and read back what the server kept: the Ansible module `kube_objects`.

Objects are applied server-side with the field manager `primus-bootstrap`; with `state: kept` one that is there stays as it is. A server
that is older than a field, or whose resource definition lacks it, drops it in silence: every field is read back, and one that was dropped
is named. What was not there before bears the mark of the cluster that asks for it (kube_mark). In check mode the server is asked with
`dryRun=All`; what cannot be asked because its kind or namespace comes first is counted as a change.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError
from ansible.module_utils.kube_cluster import Cluster, RefusedError, have, remove, wait_for
from ansible.module_utils.kube_fields import documents
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def chart_definitions(path: Path, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the resource definitions that a chart and its subcharts bring in `crds/`, from its folder or archive.

    Args:
        path: The chart.
        without: Subcharts that the values switch off: theirs are left out, as Helm does.
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


def gather(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of all three ways in which they are named."""
    read = [one for file in params["files"] for one in documents(Path(file).read_text(encoding="utf-8"))]
    return [*(chart_definitions(Path(params["chart"]), params["without"]) if params["chart"] else []), *read, *params["objects"]]


def main() -> None:
    """Do what the task asks for."""
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
        cluster = Cluster(params["kubeconfig"], look_only=module.check_mode)
        objects, state = gather(params), params["state"]
        result = remove(cluster, objects) if state == "absent" else have(cluster, objects, keep=state == "kept", mark=params["mark"])
        missing = [] if module.check_mode else wait_for(cluster, params["ready"], params["timeout_s"])
    except (ReachError, RefusedError, OSError, HTTPError) as error:
        module.fail_json(msg=str(error))
    diff = {"prepared": "\n".join(result.pop("diffs"))}
    answer = {"changed": bool(result["applied"]), **result, **({"diff": diff} if diff["prepared"] else {})}
    if result["dropped"]:
        names = "; ".join(result["dropped"])
        module.fail_json(msg=f"the API server dropped what it does not know: {names}. Fix: a newer Kubernetes or resource definition, "
                         "or leave the setting out", **answer)  # fmt: skip
    if missing:
        module.fail_json(msg=f"not ready after {params['timeout_s']} s: {'; '.join(missing)}", **answer)
    for one in result["altered"]:
        module.warn(f"{one}: something in the cluster wrote another value than asked for")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
