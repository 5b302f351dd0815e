#!/usr/bin/python
"""Check that an API server can be used with a kubeconfig: the Ansible module `kube_reach`. It changes nothing and takes seconds.

Own module: `kubernetes.core` reports one connection error for all causes. This module fails with the cause and a fix if the kubeconfig is
missing, damaged or expired, or if the server does not answer, is too old, or does not give its user enough rights.
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
    """Return whether a server is older than a version such as `1.25`; False if no version is required."""
    return bool(least) and found < tuple(int(part) for part in least.lstrip("v").split(".")[:2])


def check_server(kubeconfig: str, least: str) -> dict[str, Any]:
    """Return version and URL of the server, and for how many days the client certificate is valid.

    Raises:
        ReachError: The server cannot be used.
    """
    api = api_client(kubeconfig)
    version = server_version(api)
    try:
        allowed = ask(api, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "POST", MAY_ALL)["status"]["allowed"]
    except ApiException as error:
        raise ReachError(f"{api.primus_server}: {reason_of(error)}") from None
    if not allowed:
        raise ReachError(
            f"the user of {kubeconfig} does not have all rights in the cluster. Fix: use admin.conf, or bind cluster-admin to the user"
        )
    if too_old(version, least):
        raise ReachError(
            f"Kubernetes is {version[0]}.{version[1]}, but {least} or newer is required. Fix: upgrade Kubernetes, or pin an older chart"
        )
    _, user = context_of(read_kubeconfig(kubeconfig), kubeconfig)
    left = days_left(user, Path(kubeconfig).parent, dt.datetime.now(dt.UTC))
    return {"version": f"{version[0]}.{version[1]}", "server": api.primus_server, "certificate_days": left}


def main() -> None:
    """Check the server, and warn of a certificate that expires soon."""
    options = {"kubeconfig": {"type": "path", "required": True}, "least_version": {"default": ""}}
    module = AnsibleModule(options, supports_check_mode=True)
    try:
        found = check_server(module.params["kubeconfig"], module.params["least_version"])
    except ReachError as error:
        module.fail_json(msg=str(error))
    if found["certificate_days"] is not None and found["certificate_days"] < 14:
        module.warn(
            f"the certificate of the kubeconfig expires in {found['certificate_days']:.0f} days. Fix: primus-bootstrap renew certificates"
        )
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
