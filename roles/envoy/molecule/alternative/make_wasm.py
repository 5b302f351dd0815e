# ruff: noqa: INP001 (a program of this scenario)
"""Write a minimal proxy-wasm module that adds a header to each response.

ABI: https://github.com/proxy-wasm/spec/tree/main/abi-versions/v0.2.1; format of a module: https://webassembly.github.io/spec/core/binary.
"""

from __future__ import annotations

import sys
from pathlib import Path

I32 = 0x7F
HEADER, VALUE = b"x-molecule-wasm", b"seen"
RESPONSE_HEADERS = 2  # proxy_map_type_t
AT = 16  # address of header name and value in memory


def sized(data: bytes) -> bytes:
    """Return data with its length as prefix; all lengths are below 128."""
    return bytes([len(data)]) + data


def vector(*items: bytes) -> bytes:
    """Return items with their number as prefix."""
    return bytes([len(items)]) + b"".join(items)


def section(number: int, content: bytes) -> bytes:
    """Return a section with a length of two bytes."""
    return bytes([number, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


def signature(parameters: int, results: int) -> bytes:
    """Return the type of a function whose values are all i32."""
    return b"\x60" + sized(bytes([I32]) * parameters) + sized(bytes([I32]) * results)


def constant(value: int) -> bytes:
    """Return `i32.const` of a number below 64."""
    return bytes([0x41, value])


def module() -> bytes:
    """Return the module."""
    call = b"".join(constant(value) for value in (RESPONSE_HEADERS, AT, len(HEADER), AT + len(HEADER), len(VALUE)))
    add_header = b"\x00" + call + b"\x10\x00\x1a" + constant(0) + b"\x0b"  # no locals; call 0; drop; continue; end
    # Envoy allocates memory before it passes data; nothing else uses this address.
    allocate = b"\x00" + b"\x41\x80\x08" + b"\x0b"  # i32.const 1024
    return b"\x00asm\x01\x00\x00\x00" + b"".join([
        section(1, vector(signature(5, 1), signature(0, 0), signature(3, 1), signature(1, 1))),
        section(2, vector(sized(b"env") + sized(b"proxy_add_header_map_value") + b"\x00\x00")),
        section(3, vector(b"\x01", b"\x02", b"\x03")),
        section(5, vector(b"\x00\x01")),
        section(7, vector(
            sized(b"memory") + b"\x02\x00",
            sized(b"proxy_abi_version_0_2_1") + b"\x00\x01",
            sized(b"proxy_on_response_headers") + b"\x00\x02",
            sized(b"proxy_on_memory_allocate") + b"\x00\x03",
        )),
        section(10, vector(sized(b"\x00\x0b"), sized(add_header), sized(allocate))),
        section(11, vector(b"\x00" + constant(AT) + b"\x0b" + sized(HEADER + VALUE))),
    ])  # fmt: skip


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(module())
