#!/usr/bin/python
"""Compare a Helm release with its chart and repair it before an upgrade: the Ansible module `kube_release`.

Own module: `kubernetes.core.helm` shows no difference of objects without the plugin helm-diff, and neither repairs a release that a killed
Helm left pending, nor restores objects that somebody deleted or changed.

The chart is rendered for this server and compared with the manifest of the release, object by object. A Secret's values are never shown,
only whether they change. A pending or failed release is rolled back to its last good revision, or uninstalled if it has none, because
Helm would refuse or skip the next upgrade.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from typing import TYPE_CHECKING, Any

import yaml
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import ReachError, api_client, ask, reason_of, server_version
from ansible.module_utils.kube_cluster import Cluster, RefusedError, apply_objects
from ansible.module_utils.kube_drift import Drift, find_drift, repair
from ansible.module_utils.kube_fields import difference, documents, title
from ansible.module_utils.kube_mark import has_cluster_label, release_record
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

GOOD = ("deployed", "superseded")


class HelmError(Exception):
    """A Helm command failed; the message has Helm's output."""


def needed_repair(history: Iterable[Mapping[str, Any]]) -> tuple[str, int]:
    """Return what a release needs before an upgrade: nothing, `rollback` and the revision, or `uninstall`."""
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
        # Hooks are not part of a release's manifest.
        if metadata and "helm.sh/hook" not in (metadata.get("annotations") or {}):
            group = str(one.get("apiVersion", "")).rpartition("/")[0]
            found[(group, one["kind"], metadata.get("namespace") or namespace, str(metadata.get("name")))] = one
    return found


def changes(live: str, wanted: str, namespace: str) -> tuple[list[str], str]:
    """Return the objects that change, each with a sign, and the difference as text. A first installation has names only."""
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
    """Runs Helm for one release."""

    def __init__(self, run: Callable[[list[str]], tuple[int, str, str]], params: Mapping[str, Any]) -> None:
        """Store how Helm is run."""
        self.run, self.params = run, params

    def call(self, *words: str, absent: bool = False) -> str:
        """Return the output of a command; an empty text if the release does not exist and `absent` allows it.

        Raises:
            HelmError: The command failed.
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
        """Return whether kubernetes.core.helm will upgrade: the values, the chart version or the app version differ."""
        chart = yaml.safe_load(self.call("show", "chart", self.params["chart"]))
        held = json.loads(self.call("get", "values", self.params["release"], "--output", "json")) or {}
        wanted = (f"{chart['name']}-{chart['version']}", str(chart.get("appVersion") or ""), self.params["values"])
        return (last["chart"], str(last.get("app_version") or ""), held) != wanted

    def render(self, version: tuple[int, int], kinds: Iterable[str]) -> str:
        """Return the manifest that the chart makes of the values for such a server."""
        with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as values:
            yaml.safe_dump(self.params["values"], values)
            values.flush()
            known = [word for kind in kinds for word in ("--api-versions", kind)]
            server = ["--kube-version", f"{version[0]}.{version[1]}.0", *known]
            upgrade = ["--is-upgrade"] if self.params["upgrade"] else []
            where = [self.params["release"], self.params["chart"], "--values", values.name]
            return self.call("template", *where, *upgrade, *server)


def served(api: Any) -> list[str]:
    """Return the API versions of the server as charts test them: `v1`, `apps/v1`, `apps/v1/Deployment`."""
    groups = [version["groupVersion"] for group in ask(api, "/apis")["groups"] for version in group["versions"]]
    found = ["v1", *groups]
    for group in groups:
        # An aggregated API, such as metrics, may be unavailable; Helm continues without it as well.
        with contextlib.suppress(ApiException):
            found += [f"{group}/{one['kind']}" for one in ask(api, f"/apis/{group}")["resources"] if "/" not in one["name"]]
    return sorted(set(found))


def repair_drift(module: AnsibleModule, helm: Helm) -> Drift:
    """Restore what somebody deleted or changed by hand, and return it; check mode only returns it."""
    params = module.params
    held = by_identity(helm.call("get", "manifest", params["release"]), params["namespace"])
    found = find_drift(Cluster(params["kubeconfig"], dry_run=True), held.values(), params["release"], params["namespace"])
    if found.wanted and not module.check_mode:
        repair(Cluster(params["kubeconfig"], dry_run=False), found)
    return found


def record_release(params: Mapping[str, Any], dry_run: bool, new: bool) -> bool:  # noqa: FBT001 - two facts
    """Write the ConfigMap that records a new release as ours; return whether the release is ours."""
    cluster = Cluster(params["kubeconfig"], dry_run=dry_run)
    wanted = release_record(params["release"], params["namespace"], params["role"])
    if not new:
        return has_cluster_label(cluster.live(wanted) or {}, params["mark"])
    if not dry_run:
        apply_objects(cluster, [wanted], owner=params["mark"])
    return True


def compare_and_repair(module: AnsibleModule) -> dict[str, Any]:
    """Repair the release, and return the module's result: what was repaired and what an upgrade will change."""
    params = module.params
    api = api_client(params["kubeconfig"])
    environment = {"KUBECONFIG": params["kubeconfig"]}
    helm = Helm(lambda argv: module.run_command(argv, environ_update=environment), params)
    history = helm.history()
    what, revision = needed_repair(history)
    if what and not module.check_mode:
        number = [str(revision)] if what == "rollback" else []
        helm.call(what, params["release"], *number)
    ours = record_release(params, module.check_mode, not history or what == "uninstall")
    params["upgrade"] = bool(history) and what != "uninstall"
    state = history[-1]["status"] if history else "absent"
    healed = [f"{params['release']} was {state}: {what} {revision or ''}".strip()] if what else []
    drift = repair_drift(module, helm) if history and not what else Drift([], [], [], [])
    healed += [f"{name}: differed from the release {params['release']}, restored" for name in drift.names]
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
    """Compare and repair the release, and warn of what was repaired."""
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
        result = compare_and_repair(module)
    except ReachError as error:
        module.fail_json(msg=str(error))
    except (HelmError, RefusedError, ApiException, HTTPError, OSError, yaml.YAMLError) as error:
        why = reason_of(error) if isinstance(error, ApiException) else error
        module.fail_json(msg=f"{why}. Fix: see `helm history {module.params['release']} --namespace {module.params['namespace']}`")
    for one in result["healed"]:
        module.warn(one)
    if not result["ours"]:
        module.warn(f"the release {module.params['release']} existed before: hosts.yaml configures it from now on, and a reset keeps it")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
