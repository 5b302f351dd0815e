"""Checks of values against argument specs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from primus_bootstrap.inventory.schema.specs import Option, load_options, read_option
from primus_bootstrap.inventory.schema.type_check import DeferredPart, Fault, check_value
from primus_bootstrap.inventory.source.yaml_values import value_of

SUB = {
    "name": {"type": "str", "required": True},
    "uid": {"type": "int"},
    "shell": {"type": "str", "choices": ["bash", "zsh"]},
    "secret": {"type": "str", "no_log": True},
}
SPECS: dict[str, dict[str, Any]] = {
    "text": {"type": "str"},
    "path": {"type": "path"},
    "whole": {"type": "int"},
    "number": {"type": "float"},
    "flag": {"type": "bool"},
    "words": {"type": "list", "elements": "str"},
    "numbers": {"type": "list", "elements": "int"},
    "mapping": {"type": "dict"},
    "size": {"type": "bytes"},
    "anything": {"type": "raw"},
    "mode": {"type": "str", "choices": ["on", "off", "auto"]},
    "level": {"type": "int", "choices": [1, 2]},
    "modes": {"type": "list", "elements": "str", "choices": ["a", "b"]},
    "users": {"type": "list", "elements": "dict", "options": SUB},
    "user": {"type": "dict", "options": SUB},
}


def _parsed(name: str, raw: dict[str, Any]) -> Option:
    return read_option(("role", "main"), name, raw, raw.get("default"), has_default="default" in raw)


def _node(text: str) -> yaml.Node:
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    assert node is not None
    return node


def _check(name: str, text: str) -> list[Fault | DeferredPart]:
    return list(check_value(_parsed(name, SPECS[name]), _node(text), quotable=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text", "abc"),
        ("text", "5"),
        ("text", "1.5"),
        ("text", '"1.30"'),
        ("text", ""),
        ("path", "/etc/x"),
        ("whole", "5"),
        ("whole", "5.0"),
        ("number", "5"),
        ("number", "0.5"),
        ("flag", "true"),
        ("flag", "no"),
        ("words", "[a, b]"),
        ("words", "[a, 5]"),
        ("numbers", "[1, 2]"),
        ("mapping", "{a: 1}"),
        ("size", "10M"),
        ("size", "1024"),
        ("anything", "[1, {a: b}]"),
        ("mode", '"on"'),
        ("level", "2"),
        ("modes", "[a, b]"),
        ("users", "[{name: a, uid: 5, shell: zsh}]"),
        ("user", "{name: a}"),
    ],
)
def test_valid_value_passes(name: str, text: str) -> None:
    """A value of the declared type has no fault."""
    assert _check(name, text or "''") == []


@pytest.mark.parametrize(
    ("name", "text", "what", "fix"),
    [
        ("text", "1.30", "text must be a string, found `1.30`", 'put it in quotes: "1.30"'),
        ("text", "010", "text must be a string, found `010`", 'put it in quotes: "010"'),
        ("text", "yes", "text must be a string, found `yes`", 'put it in quotes: "yes"'),
        ("text", "2025-01-31", "text must be a string, found `2025-01-31`", 'put it in quotes: "2025-01-31"'),
        ("text", "12:30:00", "text must be a string, found `12:30:00`", 'put it in quotes: "12:30:00"'),
        ("whole", "true", "whole must be a whole number, found `true`", "write a whole number"),
        ("whole", "5.5", "whole must be a whole number, found `5.5`", "write a whole number"),
        ("whole", "'64'", "whole must be a whole number, found `'64'`", "remove the quotes: 64"),
        ("flag", "'no'", "flag must be true or false, found `'no'`", "write true or false, without quotes"),
        ("flag", "1", "flag must be true or false, found `1`", "write true or false, without quotes"),
        ("words", "a, b", "words must be a list, found `a, b`", "write it as a list: [a, b]"),
        ("mapping", "a=1", "mapping must be a mapping, found `a=1`", "write each of its keys as `name: value` on a separate line"),
        ("mapping", "[a]", "mapping must be a mapping, found a list", "write each of its keys as `name: value` on a separate line"),
        ("numbers", "[1, x]", "numbers[1] must be a whole number, found `x`", "write a whole number"),
        ("mode", "on", "mode must be a string, found `on`", 'put it in quotes: "on"'),
        ("mode", "atuo", "mode must be one of: on, off, auto; found `atuo`", "did you mean auto?"),
        ("level", "3", "level must be one of: 1, 2; found `3`", "choose from: 1, 2"),
        ("modes", "[a, q1]", "modes must be one of: a, b; found `q1`", "choose from: a, b"),
        ("user", "{nam: a}", "user: unknown key nam", "did you mean name?"),
        ("users", "[{name: a, uid: x}]", "users[0].uid must be a whole number, found `x`", "write a whole number"),
        ("user", "{name: a, secret: [hunter2]}", "user.secret must be a string, found a list", "write a string"),
    ],
)
def test_invalid_value_is_reported(name: str, text: str, what: str, fix: str) -> None:
    """The message has the expected and the found value, the fix has what to write."""
    found = [(fault.what, fault.fix) for fault in _check(name, text) if isinstance(fault, Fault)]

    assert (what, fix) in found


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("whole", '"{{ x }}"', 1),
        ("users", '"{{ x }}"', 1),
        ("words", '["{{ x }}", b]', 1),
        ("users", '[{name: "{{ x }}", uid: "{{ y }}"}]', 2),
        ("text", "!vault abc", 1),
        ("user", "{name: !vault abc}", 1),
    ],
)
def test_templates_and_encrypted_values_are_deferred(name: str, text: str, count: int) -> None:
    """Templates and encrypted values are deferred, also inside other values."""
    assert [type(found) for found in _check(name, text)] == [DeferredPart] * count


def test_unsafe_string_is_not_a_template() -> None:
    """A value with the tag `!unsafe` is checked although it contains braces."""
    assert _check("text", '!unsafe "{{ x }}"') == []
    assert [type(found) for found in _check("whole", '!unsafe "{{ x }}"')] == [Fault]


def test_faults_in_nested_values_have_their_lines() -> None:
    """Each fault has the line of the nested value."""
    faults = _check("users", "- name: a\n- name: b\n  uid: x\n- uid: 1\n")

    assert [(fault.line, fault.what) for fault in faults if isinstance(fault, Fault)] == [
        (3, "users[1].uid must be a whole number, found `x`"),
        (4, "users[2]: the required key name is missing"),
    ]


@pytest.mark.parametrize("text", ["hunter2", "'hunter2'", "[hunter2]", "{hunter2: 1}", "!unsafe [hunter2]"])
def test_secret_is_never_shown(text: str) -> None:
    """No message shows the value of a `no_log` option."""
    option = _parsed("password", {"type": "int", "no_log": True, "choices": [1]})

    faults = list(check_value(option, _node(text), quotable=True))

    assert faults
    assert "hunter2" not in str(faults)


WORDS = st.sampled_from(["a", "b", "on", "auto", "zsh", "5", "1.5", "true", "no", "a=1", "", "x,y", "10M", "name", "uid"])
LEAVES = st.one_of(WORDS, st.integers(-3, 3), st.floats(-2, 2), st.booleans(), st.just(None))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "uid", "shell", "secret", "other"]), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(name=st.sampled_from(sorted(SPECS)), value=VALUES)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rejects_all_that_ansible_rejects(name: str, value: Any) -> None:
    """A value that Ansible's validator rejects has a fault."""
    node = _node(yaml.safe_dump(value))
    try:
        rejected = bool(ArgumentSpecValidator({name: SPECS[name]}).validate({name: value_of(node)}).error_messages)
    except TypeError:
        rejected = True  # Ansible 2.19 raises it for a number in place of a mapping with options

    faults = [found for found in check_value(_parsed(name, SPECS[name]), node, quotable=True) if isinstance(found, Fault)]

    assert faults or not rejected


@pytest.mark.parametrize(
    ("spec", "text", "faults"),
    [
        ({"name": "role_timeout_s", "type": "int"}, "-1", 1),
        ({"name": "role_timeout_s", "type": "int"}, "0", 0),
        ({"name": "role_size_mib", "type": "float"}, "-0.5", 1),
        ({"name": "role_limit_percent", "type": "int"}, "-5", 1),
        ({"name": "role_port", "type": "int"}, "-80", 1),
        ({"name": "role_backoff_s", "type": "list", "elements": "int"}, "[0, -5]", 1),
        ({"name": "role_limits", "type": "dict", "options": {"wait_s": {"type": "int"}}}, "{wait_s: -1}", 1),
        ({"name": "role_warn_c", "type": "int"}, "-10", 0),
        ({"name": "role_priority", "type": "int"}, "-10", 0),
        ({"name": "role_memlock_kib", "type": "int", "description": "Memory in KiB; -1 = no limit."}, "-1", 0),
        ({"name": "role_timeout_s", "type": "int"}, "'{{ x }}'", 0),
    ],
)
def test_an_amount_is_not_negative_unless_its_description_says_so(spec: dict[str, Any], text: str, faults: int) -> None:
    """The unit in the name, or a name like role_port, makes a number an amount."""
    parts = check_value(_parsed(spec["name"], spec), _node(text), quotable=True)
    found = [part for part in parts if isinstance(part, Fault)]

    assert [fault.rule for fault in found] == ["negative"] * faults
    assert all("must not be negative" in fault.what and "primus-bootstrap schema role_" in fault.fix for fault in found)


def test_no_default_of_a_role_is_a_negative_amount() -> None:
    """Otherwise its description must say what a negative number means."""
    wrong = [option.name for option in load_options().values() if option.not_negative and _is_negative(option.default)]

    assert wrong == []


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and value < 0
