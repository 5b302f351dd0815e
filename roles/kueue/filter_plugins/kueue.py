# ruff: noqa: INP001 (Ansible loads it by path)
"""Filter that finds errors in the queues of hosts.yaml before anything is changed."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    # Variable, problem, fix, name of the rule.
    Finding = tuple[str, str, str, str]

# RFC 1123 subdomain, as in Kueue's schema (apis/kueue/v1beta2 of v0.19.2).
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ (without exponents, which are unusual for a quota)
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
HOSTNAME = "kubernetes.io/hostname"
LARGEST_PRIORITY = 2**31 - 1
# The variables that `findings` reads.
VARIABLES = (
    "kueue_topology_levels",
    "kueue_flavors",
    "kueue_cohorts",
    "kueue_cluster_queues",
    "kueue_local_queues",
    "kueue_priorities",
    "kueue_fair_sharing",
)


def findings(variables: Mapping[str, Any]) -> list[Finding]:
    """Return errors that Kueue would reject, or that would make jobs wait forever.

    Args:
        variables: The role's variables by name; a missing one has its default.
    """
    return [
        *_names(variables),
        *_topology(variables),
        *_flavors(variables),
        *_cohorts(variables),
        *_queues(variables),
        *_local(variables),
        *_priorities(variables),
    ]


def kueue_findings(variables: Mapping[str, Any]) -> list[str]:
    """Return a line for each error: the problem, and `Fix:`."""
    return [f"{what}. Fix: {fix}" for _, what, fix, _ in findings(variables)]


def _mappings(value: Any) -> list[dict[str, Any]]:
    """Return the mappings of a list. The argument specs report values of another type."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _listed(variables: Mapping[str, Any], variable: str) -> list[dict[str, Any]]:
    return _mappings(variables.get(variable))


def _names(variables: Mapping[str, Any]) -> Iterator[Finding]:
    for variable in ("kueue_flavors", "kueue_cohorts", "kueue_cluster_queues", "kueue_priorities"):
        names = [str(one.get("name", "")) for one in _listed(variables, variable)]
        yield from _bad_names(variable, names)
    local = _listed(variables, "kueue_local_queues")
    yield from _bad_names("kueue_local_queues", [str(one.get("name", "")) for one in local], twice=False)
    paths = Counter((str(one.get("namespace", "")), str(one.get("name", ""))) for one in local)
    for (namespace, name), count in paths.items():
        if count > 1:
            what = f"kueue_local_queues names {name} in {namespace} more than once"
            yield ("kueue_local_queues", what, "name each queue of a namespace once", "kueue-twice")
        if not NAMESPACE.fullmatch(namespace):
            what = f"kueue_local_queues: `{namespace}` is not a valid name of a namespace"
            yield ("kueue_local_queues", what, "use lower-case letters, digits and -, at most 63 characters", "kueue-name")


def _bad_names(variable: str, names: Sequence[str], *, twice: bool = True) -> Iterator[Finding]:
    if odd := [name for name in dict.fromkeys(names) if len(name) > 253 or not NAME.fullmatch(name)]:
        yield (
            variable,
            f"{variable}: not valid in Kubernetes: {', '.join(odd)}",
            "use lower-case letters, digits, - and . only",
            "kueue-name",
        )
    if twice and (several := [name for name, count in Counter(names).items() if count > 1]):
        yield (variable, f"{variable} names {', '.join(several)} more than once", "name each once", "kueue-twice")


def _topology(variables: Mapping[str, Any]) -> Iterator[Finding]:
    about, levels = "kueue_topology_levels", [str(one) for one in _list(variables.get("kueue_topology_levels"))]
    if odd := [one for one in levels if len(one) > 316 or not LABEL.fullmatch(one)]:
        yield (
            about,
            f"{about}: not a valid label: {', '.join(odd)}",
            "write labels such as example.com/rack, the widest first",
            "kueue-level",
        )
    if several := [one for one, count in Counter(levels).items() if count > 1]:
        yield (about, f"{about} names {', '.join(several)} more than once", "name each level once", "kueue-level")
    if HOSTNAME in levels[:-1]:
        yield (about, f"{about}: {HOSTNAME} is not the last level", "leave it out: it is added below the others", "kueue-level")


def _flavors(variables: Mapping[str, Any]) -> Iterator[Finding]:
    seen: dict[tuple[Any, ...], str] = {}
    for one in _listed(variables, "kueue_flavors"):
        name, labels = one.get("name"), _mapping(one.get("node_labels"))
        if not one.get("model") and not labels:
            if variables.get("kueue_topology_levels") and one.get("topology", True):
                what = f"flavor {name} has neither a model nor node_labels, which a topology needs to find its nodes"
                yield ("kueue_flavors", what, "give it a model, node_labels, or topology: false", "kueue-flavor-nodes")
            continue
        key = (str(one.get("model")), *sorted((str(label), str(value)) for label, value in labels.items()))
        if key in seen:
            what = f"flavors {seen[key]} and {name} have the same nodes, which would be counted twice"
            yield ("kueue_flavors", what, "remove one of them, or give them different node_labels", "kueue-flavor-nodes")
        seen.setdefault(key, str(name))


def _cohorts(variables: Mapping[str, Any]) -> Iterator[Finding]:
    about = "kueue_cohorts"
    parents = {str(one.get("name")): str(one.get("parent") or "") for one in _listed(variables, about)}
    cycles = set()
    for start in parents:
        path, at = [start], parents.get(start)
        while at and at not in path:
            path.append(at)
            at = parents.get(at)
        if at == start:
            cycles.add(" -> ".join(sorted(str(one) for one in path)))
    for cycle in sorted(cycles):
        yield (
            about,
            f"the parents of cohorts form a cycle: {cycle}",
            "remove one parent: Kueue admits no job in a cycle",
            "kueue-cohort",
        )
    for one in _listed(variables, about):
        quotas = _mappings(one.get("quotas"))
        yield from _quotas(variables, about, f"cohort {one.get('name')}", quotas, above=one.get("parent"), word="parent")


def _queues(variables: Mapping[str, Any]) -> Iterator[Finding]:
    about = "kueue_cluster_queues"
    for one in _listed(variables, about):
        what = f"queue {one.get('name')}"
        yield from _quotas(variables, about, what, _mappings(one.get("quotas")), above=one.get("cohort"), word="cohort")
        if not one.get("quotas") and not one.get("cohort"):
            yield (about, f"{what} has no quotas and no cohort: no job could ever start", "give it quotas", "kueue-quota")
        if one.get("borrow_within_cohort", "Never") != "Never":
            if one.get("reclaim_within_cohort", "Any") == "Never":
                yield (
                    about,
                    f"{what}: borrow_within_cohort preempts, and reclaim_within_cohort is Never",
                    "set reclaim_within_cohort as well, or remove borrow_within_cohort",
                    "kueue-preemption",
                )
            if variables.get("kueue_fair_sharing"):
                yield (
                    about,
                    f"{what}: borrow_within_cohort cannot be used with kueue_fair_sharing",
                    "remove one of the two",
                    "kueue-preemption",
                )


def _quotas(  # noqa: PLR0913 - one place for queues and cohorts
    variables: Mapping[str, Any], about: str, what: str, quotas: Sequence[Mapping[str, Any]], *, above: str | None, word: str
) -> Iterator[Finding]:
    """Check the quotas of a queue or a cohort; `above` is the cohort that it borrows from."""
    known = [str(one.get("name")) for one in _listed(variables, "kueue_flavors")]
    names = [str(one.get("flavor")) for one in quotas]
    if unknown := sorted({name for name in names if name not in known}):
        fix = f"choose from: {', '.join(known)}" if known else "add it to kueue_flavors"
        yield (about, f"{what}: no such flavor: {', '.join(unknown)}", fix, "kueue-unknown-flavor")
    if several := [name for name, count in Counter(names).items() if count > 1]:
        yield (about, f"{what} has two quotas of the flavor {', '.join(several)}", "combine them into one", "kueue-quota")
    for one in quotas:
        yield from _limits(about, f"{what}, flavor {one.get('flavor')}", one, above=above, word=word)
    sets = [set(_mapping(one.get("resources"))) for one in quotas]
    for number, one in enumerate(sets):
        for other, name in zip(sets[:number], names, strict=False):
            if one & other and one != other:
                both = f"{name} and {names[number]}"
                yield (
                    about,
                    f"{what}: the flavors {both} share {', '.join(sorted(map(str, one & other)))}, but have quotas of different resources",
                    "give both the same resources (with 0 if there is none)",
                    "kueue-quota",
                )


def _limits(about: str, what: str, one: Mapping[str, Any], *, above: str | None, word: str) -> Iterator[Finding]:
    resources = _mapping(one.get("resources"))
    if not resources:
        yield (about, f"{what} has no resources", "give it a quota, such as {amd.com/gpu: 64}", "kueue-quota")
    for kind in ("resources", "borrowing_limits", "lending_limits"):
        given = _mapping(one.get(kind))
        odd = [f"{name}: {value}" for name, value in given.items() if isinstance(value, bool) or not QUANTITY.fullmatch(str(value))]
        if odd:
            yield (about, f"{what}: not a quantity: {', '.join(odd)}", "write 64, 500m or 8Ti", "kueue-quantity")
        if kind == "resources" or not given:
            continue
        if not above:
            yield (about, f"{what}: Kueue rejects {kind} without a {word}", f"set a {word}, or remove {kind}", "kueue-quota")
        if lost := sorted(set(map(str, given)) - set(map(str, resources))):
            yield (
                about,
                f"{what}: {kind} of {', '.join(lost)} without a quota of it",
                "add it to resources (0 is a quota)",
                "kueue-quota",
            )


def _local(variables: Mapping[str, Any]) -> Iterator[Finding]:
    queues = {str(one.get("name")): one for one in _listed(variables, "kueue_cluster_queues")}
    for one in _listed(variables, "kueue_local_queues"):
        path, target = f"{one.get('namespace')}/{one.get('name')}", str(one.get("cluster_queue"))
        if target not in queues:
            fix = f"choose from: {', '.join(queues)}" if queues else "add it to kueue_cluster_queues"
            yield ("kueue_local_queues", f"local queue {path}: no such queue: {target}", fix, "kueue-unknown-queue")
            continue
        admitted = [str(name) for name in _list(queues[target].get("namespaces"))]
        if admitted and one.get("namespace") not in admitted:
            what = f"local queue {path}: {target} accepts jobs of {', '.join(admitted)} only"
            yield ("kueue_local_queues", what, f"add {one.get('namespace')} to the namespaces of {target}", "kueue-namespace")


def _priorities(variables: Mapping[str, Any]) -> Iterator[Finding]:
    for one in _listed(variables, "kueue_priorities"):
        value = one.get("value")
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST_PRIORITY:
            what = f"priority {one.get('name')}: `{value}` is not an integer of 32 bits"
            yield ("kueue_priorities", what, "set a number such as 1000", "kueue-priority")


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"kueue_findings": kueue_findings}
