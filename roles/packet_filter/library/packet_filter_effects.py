#!/usr/bin/python
"""Ansible module `packet_filter_effects`: connect to a host from another one, to an accepted port and to a rejected one.

ansible.builtin.wait_for does not say how a connection failed: a filter that rejects it differs from a port without a program.
"""

from __future__ import annotations

import errno
import os
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.verdict_records import Verdicts

CONNECT_S = 10.0
# The kernel sends at most one such message a second to a host (icmp_ratelimit), so the answer to a first packet can be missing.
ANSWERS = {0: "accepted", errno.ECONNREFUSED: "not filtered: no program listens there", errno.EHOSTUNREACH: "rejected"}


def connect(address: str, port: int) -> tuple[int, str]:
    """Return the error number of a connection (0 for none), and how it ended in words."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_S)
        try:
            number = client.connect_ex((address, port))
        except OSError as error:  # socket.timeout in Python 3.9
            number = error.errno or errno.ETIMEDOUT
    number = errno.ETIMEDOUT if number == errno.EAGAIN else number
    return number, ANSWERS.get(number, os.strerror(number))


def check(verdicts: Verdicts, peer: str, address: str, open_port: int, closed_port: int) -> None:
    """Check that SSH is accepted, and that a port that no service needs is rejected. A closed port of 0 is not checked."""
    fix = "primus-bootstrap apply hosts.yaml --phase baseline"
    number, found = connect(address, open_port)
    expected = f"port {open_port} accepted from {peer}"
    verdicts.add("accepts", "pass" if number == 0 else "fail", expected=expected, found=found, fix=fix)
    if not closed_port:
        verdicts.skip("rejects", "packet_filter_extra_rules accepts every port below 1024")
        return
    number, found = connect(address, closed_port)
    expected = f"port {closed_port} rejected for {peer}"
    # A network between the hosts can drop the message of the filter.
    verdict = "pass" if number == errno.EHOSTUNREACH else "unknown" if number == errno.ETIMEDOUT else "fail"
    verdicts.add("rejects", verdict, expected=expected, found=found, fix=fix)


def main() -> None:
    """Run as an Ansible module."""
    arguments = {name: {"type": "str", "required": True} for name in ("host", "peer", "address")}
    arguments |= {name: {"type": "int", "required": True} for name in ("open_port", "closed_port")}
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    options = module.params
    verdicts = Verdicts("packet_filter", options["host"])
    check(verdicts, options["peer"], options["address"], options["open_port"], options["closed_port"])
    verdicts.finish(module)


if __name__ == "__main__":
    main()
