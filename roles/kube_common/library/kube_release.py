#!/usr/bin/python
"""What would change of a Helm release, and a release that a killed Helm left half done: the Ansible module `kube_release`.

It renders the chart with the values as Helm would for this server and compares with what the release holds, object by object; of a Secret's
values only whether they change is shown. A release that is pending or failed is put back: to its last good revision, or away where it
never had one, so that the next upgrade is not refused and not left out. Of a release that is well, what somebody deleted or changed by hand
is brought back, which Helm itself does not see.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from typing import TYPE_CHECKING, Any

import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, api_client, ask, reason_of, server_version
from ansible.module_utils.kube_cluster import Cluster, RefusedError, have
from ansible.module_utils.kube_drift import Drift, heal, look
from ansible.module_utils.kube_fields import difference, documents, title
from ansible.module_utils.kube_mark import is_marked, record_of
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

GOOD = ("deployed", "superseded")


class HelmError(Exception):
    """Helm refused; the message is its own."""


def cure(history: Iterable[Mapping[str, Any]]) -> tuple[str, int]:
    """Return what a release needs before it can be upgraded: nothing, `rollback` to a revision, or `uninstall`."""
    revisions = sorted(history, key=lambda one: int(one["revision"]))
    if not revisions or revisions[-1]["status"] == "deployed":
        return "", 0
    good = [int(one["revision"]) for one in revisions if one["status"] in GOOD]
    return ("rollback", good[-1]) if good else ("uninstall", 0)


def by_identity(text: str, namespace: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the objects of a manifest by group, kind, namespace and name."""
    found = {}
    for one in documents(text):
        metadata = one.get("metadata") or {}
        # Hooks are no part of what a release holds.
        if metadata and "helm.sh/hook" not in (metadata.get("annotations") or {}):
            group = str(one.get("apiVersion", "")).rpartition("/")[0]
            found[(group, one["kind"], metadata.get("namespace") or namespace, str(metadata.get("name")))] = one
    return found


def changes(live: str, wanted: str, namespace: str) -> tuple[list[str], str]:
    """Return which objects change, with a sign, and the difference as text; of a first install only the names."""
    before, after = by_identity(live, namespace), by_identity(wanted, namespace)
    names, texts = [], []
    for key in sorted({*before, *after}):
        sign = "~" if key in before and key in after else "+" if key in after else "-"
        text = difference(before.get(key), after.get(key))
        if text or sign != "~":
            names.append(f"{sign} {title(after.get(key) or before[key])}")
            texts.append(text)
    return names, "\n".join(texts if before else names)


class Helm:
    """Helm, for one release."""

    def __init__(self, run: Callable[[list[str]], tuple[int, str, str]], params: Mapping[str, Any]) -> None:
        """Keep how it is called."""
        self.run, self.params = run, params

    def call(self, *words: str, absent: bool = False) -> str:
        """Return what a command prints; nothing where the release is absent and that is no error.

        Raises:
            HelmError: it ended otherwise.
        """
        rc, out, err = self.run([self.params["helm"], *words, "--namespace", self.params["namespace"]])
        if rc != 0 and absent and "not found" in err:
            return ""
        if rc != 0:
            raise HelmError(f"helm {words[0]} {self.params['release']}: {err.strip() or out.strip()}")
        return out

    def history(self) -> list[dict[str, Any]]:
        """Return the revisions of the release."""
        out = self.call("history", self.params["release"], "--output", "json", absent=True)
        return json.loads(out) if out.strip() else []

    def upgrades(self, last: Mapping[str, Any]) -> bool:
        """Whether kubernetes.core.helm will upgrade: other values, another version of the chart or of what it brings."""
        chart = yaml.safe_load(self.call("show", "chart", self.params["chart"]))
        held = json.loads(self.call("get", "values", self.params["release"], "--output", "json")) or {}
        wanted = (f"{chart['name']}-{chart['version']}", str(chart.get("appVersion") or ""), self.params["values"])
        return (last["chart"], str(last.get("app_version") or ""), held) != wanted

    def render(self, version: tuple[int, int], kinds: Iterable[str]) -> str:
        """Return what the chart makes of the values on such a server, hooks and their Jobs left out."""
        with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as values:
            yaml.safe_dump(self.params["values"], values)
            values.flush()
            known = [word for kind in kinds for word in ("--api-versions", kind)]
            server = ["--kube-version", f"{version[0]}.{version[1]}.0", *known]
            upgrade = ["--is-upgrade"] if self.params["upgrade"] else []
            where = [self.params["release"], self.params["chart"], "--values", values.name]
            return self.call("template", *where, *upgrade, *server)


def served(api: Any) -> list[str]:
    """Return what the server serves, in the words that charts ask for: `v1`, `apps/v1`, `apps/v1/Deployment`."""
    groups = [version["groupVersion"] for group in ask(api, "/apis")["groups"] for version in group["versions"]]
    found = ["v1", *groups]
    for group in groups:
        # One that another server answers for, such as metrics, may be away; Helm goes on without it as well.
        with contextlib.suppress(ApiException):
            found += [f"{group}/{one['kind']}" for one in ask(api, f"/apis/{group}")["resources"] if "/" not in one["name"]]
    return sorted(set(found))


def put_back(module: AnsibleModule, helm: Helm) -> Drift:
    """Bring back what somebody deleted or changed by hand; in check mode only see what that would be."""
    params = module.params
    held = by_identity(helm.call("get", "manifest", params["release"]), params["namespace"])
    looking = Cluster(params["kubeconfig"], look_only=True)
    found = look(looking, held.values(), params["release"], params["namespace"])
    if found.wanted and not module.check_mode:
        heal(Cluster(params["kubeconfig"], look_only=False), found)
    return found


def record(params: Mapping[str, Any], look_only: bool, new: bool) -> bool:  # noqa: FBT001 - two facts
    """Have the ConfigMap that says that a release is ours, where it is new; return whether it is ours."""
    cluster = Cluster(params["kubeconfig"], look_only=look_only)
    wanted = record_of(params["release"], params["namespace"], params["role"])
    if not new:
        return is_marked(cluster.live(wanted) or {}, params["mark"])
    if not look_only:
        have(cluster, [wanted], mark=params["mark"])
    return True


def work(module: AnsibleModule) -> dict[str, Any]:
    """Look, heal, and say what will change."""
    params = module.params
    api = api_client(params["kubeconfig"])
    environment = {"KUBECONFIG": params["kubeconfig"]}
    helm = Helm(lambda argv: module.run_command(argv, environ_update=environment), params)
    history = helm.history()
    what, revision = cure(history)
    if what and not module.check_mode:
        number = [str(revision)] if what == "rollback" else []
        helm.call(what, params["release"], *number)
    ours = record(params, module.check_mode, not history or what == "uninstall")
    params["upgrade"] = bool(history) and what != "uninstall"
    state = history[-1]["status"] if history else "absent"
    healed = [f"{params['release']} was {state}: {what} {revision or ''}".strip()] if what else []
    drift = put_back(module, helm) if history and not what else Drift([], [], [], [])
    healed += [f"{name}: not as {params['release']} has it, put back" for name in drift.names]
    differs, texts = [f"! {name}" for name in drift.names], list(drift.diffs)
    result: dict[str, Any] = {"ours": ours, "found": state, "healed": healed, "altered": drift.others}
    result["upgrades"] = not params["upgrade"] or bool(what) or helm.upgrades(history[-1])
    if result["upgrades"]:
        live = helm.call("get", "manifest", params["release"], absent=True) if params["upgrade"] else ""
        names, text = changes(live, helm.render(server_version(api), served(api)), params["namespace"])
        differs += names
        texts += [text] if text else []
    result |= {"changed": result["upgrades"] or bool(drift.wanted), "differs": differs}
    return {**result, "diff": {"prepared": "\n".join(texts) + "\n"}} if texts else result


def main() -> None:
    """Do what the task asks for."""
    options = {
        "kubeconfig": {"type": "path", "required": True},
        "helm": {"type": "path", "required": True},
        "release": {"required": True},
        "namespace": {"required": True},
        "chart": {"type": "path", "required": True},
        "values": {"type": "dict", "default": {}},
        "role": {"required": True},
        "mark": {"required": True},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    try:
        result = work(module)
    except ReachError as error:
        module.fail_json(msg=str(error))
    except (HelmError, RefusedError, ApiException, HTTPError, OSError, yaml.YAMLError) as error:
        why = reason_of(error) if isinstance(error, ApiException) else error
        module.fail_json(msg=f"{why}. Fix: see `helm history {module.params['release']} --namespace {module.params['namespace']}`")
    for one in result["healed"]:
        module.warn(one)
    if not result["ours"]:
        module.warn(f"the release {module.params['release']} was there before: it follows hosts.yaml from now on, and a reset leaves it")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
