#!/usr/bin/python
"""Whether an API server can be used through a kubeconfig: the Ansible module `kube_reach`. It changes nothing and takes seconds.

A kubeconfig that is missing, broken or expired, and a server that does not answer, is too old, or lets its user do too little, are
refused with the reason.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kube_client import (
    ReachError,
    api_client,
    ask,
    context_of,
    days_left,
    read_kubeconfig,
    reason_of,
    server_version,
)
from kubernetes.client.exceptions import ApiException

MAY_ALL = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
           "spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}}  # fmt: skip


def too_old(found: tuple[int, int], least: str) -> bool:
    """Whether a server is older than `1.25`; any server does where nothing is asked for."""
    return bool(least) and found < tuple(int(part) for part in least.lstrip("v").split(".")[:2])


def look(kubeconfig: str, least: str) -> dict[str, Any]:
    """Return what the server is.

    Raises:
        ReachError: it cannot be used.
    """
    api = api_client(kubeconfig)
    version = server_version(api)
    try:
        allowed = ask(api, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "POST", MAY_ALL)["status"]["allowed"]
    except ApiException as error:
        raise ReachError(f"{api.primus_server}: {reason_of(error)}") from None
    if not allowed:
        raise ReachError(
            f"the user of {kubeconfig} may not do everything in the cluster. Fix: use admin.conf, or bind cluster-admin to the user"
        )
    if too_old(version, least):
        raise ReachError(
            f"Kubernetes is {version[0]}.{version[1]}, and this needs {least} or newer. Fix: upgrade Kubernetes, or pin an older chart"
        )
    _, user = context_of(read_kubeconfig(kubeconfig), kubeconfig)
    left = days_left(user, Path(kubeconfig).parent, dt.datetime.now(dt.UTC))
    return {"version": f"{version[0]}.{version[1]}", "server": api.primus_server, "certificate_days": left}


def main() -> None:
    """Do what the task asks for."""
    options = {"kubeconfig": {"type": "path", "required": True}, "least_version": {"default": ""}}
    module = AnsibleModule(options, supports_check_mode=True)
    try:
        found = look(module.params["kubeconfig"], module.params["least_version"])
    except ReachError as error:
        module.fail_json(msg=str(error))
    if found["certificate_days"] is not None and found["certificate_days"] < 14:
        module.warn(f"the kubeconfig's certificate expires in {found['certificate_days']:.0f} days: renew the control plane's certificates")
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
