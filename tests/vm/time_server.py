"""An NTP server for the virtual machine, which reaches no other: its time continues from that of the machine.

It runs in the machine, on an address of the loopback interface. chrony trusts it like any server, so that the machine is synchronised.
"""

import socket
import struct
import time

ADDRESS = "127.0.0.9"
# Seconds from 1900, the epoch of NTP, to 1970.
_EPOCH_S = 2208988800
# Not slewed by chrony, which would otherwise chase its own corrections.
_RAW = time.CLOCK_MONOTONIC_RAW


def reply(request: bytes, now_s: float) -> bytes:
    """Return the answer of a server of stratum 1 (RFC 5905, figure 8)."""
    stamp = struct.pack("!Q", int((now_s + _EPOCH_S) * 2**32))
    head = struct.pack("!BBbbII4s", 0x24, 1, 3, -20, 0, 16, b"TEST")
    return head + stamp + request[40:48] + stamp + stamp


def main() -> None:
    """Answer until the process is stopped."""
    ahead_s = time.time() - time.clock_gettime(_RAW)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((ADDRESS, 123))
        while True:
            request, client = server.recvfrom(512)
            server.sendto(reply(request, time.clock_gettime(_RAW) + ahead_s), client)


if __name__ == "__main__":
    main()
