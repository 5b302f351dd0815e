"""Rules about the labels, taints and groups of Kubernetes nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.rules.kubernetes_names import label_fault, split_taint, taint_fault
from primus_bootstrap.inventory.source.yaml_values import entries, is_deferred, is_template, line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition


def node_labels(context: ValidationContext) -> Iterator[Problem]:
    """Report invalid labels. Kubespray would stop at one after it has created the cluster and labelled some nodes."""
    for definition in _readable(context, "node_labels"):
        node, file = definition.node, definition.origin.file
        if not isinstance(node, yaml.MappingNode):
            what = "node_labels is not a mapping; Kubespray would silently ignore it"
            yield definition.origin.problem(what, "write each label as `key: value` on a separate line", "node-labels")
            continue
        for key, value in entries(node):
            if is_template(key) or is_deferred(value):
                continue
            if fault := label_fault(value_of(key), value_of(value)):
                yield Problem(file, line_of(key), f"node_labels: {fault[0]}", fault[1], "node-labels")


def node_taints(context: ValidationContext) -> Iterator[Problem]:
    """Report invalid taints. All taints of a node are set with one command, so one invalid taint prevents all of them."""
    for definition in _readable(context, "node_taints"):
        node, file = definition.node, definition.origin.file
        if not isinstance(node, yaml.SequenceNode):
            what = "node_taints is not a list; Kubespray would silently ignore it"
            yield definition.origin.problem(what, "write each taint as `- key=value:effect` on a separate line", "node-taints")
            continue
        first: dict[tuple[str, str], str] = {}
        for item in node.value:
            if is_deferred(item):
                continue
            taint = value_of(item)
            if fault := taint_fault(taint):
                yield Problem(file, line_of(item), f"node_taints: {fault[0]}", fault[1], "node-taints")
                continue
            key, _, effect = split_taint(taint)
            if (key, effect) in first:
                what = f"node_taints: {taint} and {first[key, effect]} have the same key and effect"
                yield Problem(file, line_of(item), what, "delete one of the two", "node-taints")
            first.setdefault((key, effect), taint)


def infra_nodes(context: ValidationContext) -> Iterator[Problem]:
    """Report infrastructure nodes that run no pods, or that have GPUs: services would wait for a node, or disturb training jobs."""
    group, gpus = "kube_infra_node", context.groups.get("gpu_node", ())
    for host in context.groups.get(group, ()):
        if host in gpus:
            what = f"{host} is in {group} and in gpu_node: the cluster's services would run beside training jobs"
            yield context.group_origin(group).problem(what, f"remove {host} from one of them", "infra-node")
        elif host not in context.groups.get("kube_node", ()):
            what = f"{host} is in {group} but not in kube_node, so no pod would run on it"
            yield context.group_origin(group).problem(what, f"add {group} to the children of kube_node", "infra-node")


def _readable(context: ValidationContext, name: str) -> Iterator[Definition]:
    """Yield the definitions of a variable in plain text. The role checks templates and encrypted values in the run."""
    for definition in context.variable_index.by_name.get(name, ()):
        if not (definition.encrypted or is_deferred(definition.node)):
            yield definition


RULES: tuple[Rule, ...] = (node_labels, node_taints, infra_nodes)
