"""Rules about labels and taints of Kubernetes' Nodes: what the API server would refuse, after the cluster was built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.rules.kubernetes_names import label_fault, split_taint, taint_fault
from primus_bootstrap.inventory.source.yaml_values import entries, is_template, is_vaulted, line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition


def node_labels(reading: ValidationContext) -> Iterator[Problem]:
    """Kubespray labels one node after the other at the end of its play: a label that no server takes stops it there, half way."""
    for definition in _readable(reading, "node_labels"):
        node, file = definition.node, definition.origin.file
        if not isinstance(node, yaml.MappingNode):
            what = "node_labels is no mapping; Kubespray would leave it out and say nothing"
            yield Problem(file, definition.origin.line, what, "write key: value below it", "node-labels")
            continue
        for key, value in entries(node):
            if is_template(key) or is_template(value) or is_vaulted(value):
                continue
            if fault := label_fault(value_of(key), value_of(value)):
                yield Problem(file, line_of(key), f"node_labels: {fault[0]}", fault[1], "node-labels")


def node_taints(reading: ValidationContext) -> Iterator[Problem]:
    """`kubectl taint` takes all taints of a node in one command: a wrong one leaves it without any, and pods start there."""
    for definition in _readable(reading, "node_taints"):
        node, file = definition.node, definition.origin.file
        if not isinstance(node, yaml.SequenceNode):
            what = "node_taints is no list; Kubespray would leave it out, and pods would start there"
            yield Problem(file, definition.origin.line, what, "write `- key=value:effect` below it", "node-taints")
            continue
        seen: dict[tuple[str, str], str] = {}
        for item in node.value:
            if is_template(item) or is_vaulted(item):
                continue
            taint = value_of(item)
            if fault := taint_fault(taint):
                yield Problem(file, line_of(item), f"node_taints: {fault[0]}", fault[1], "node-taints")
                continue
            key, _, effect = split_taint(taint)
            if (key, effect) in seen:
                what = f"node_taints: {taint} and {seen[key, effect]} have one key and one effect; a Node has such a taint once"
                yield Problem(file, line_of(item), what, "keep one of the two", "node-taints")
            seen.setdefault((key, effect), taint)


def _readable(reading: ValidationContext, name: str) -> Iterator[Definition]:
    """Yield where a variable is written in plain text; what is a template or under Vault the role judges in the run."""
    for definition in reading.merged.by_name.get(name, ()):
        if not (definition.encrypted or is_template(definition.node) or is_vaulted(definition.node)):
            yield definition


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (node_labels, node_taints)
