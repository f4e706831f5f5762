"""The code for GPUs in a library that nvcc made, which it compresses with zstd."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
from collections.abc import Iterator

MAGIC = struct.pack("<IH", 0xBA55ED50, 1)
KINDS = {1: "compute", 2: "sm"}  # PTX, machine code


def find_zstd() -> ctypes.CDLL | None:
    """The library that decompresses."""
    name = ctypes.util.find_library("zstd")
    return ctypes.CDLL(name) if name else None


def codes(binary: bytes) -> Iterator[tuple[str, bytes]]:
    """Each piece of code with what it is for, sm_90 or compute_90."""
    begin = binary.find(MAGIC)
    while begin >= 0:
        header, size = struct.unpack_from("<HQ", binary, begin + 6)
        at = begin + header
        end = at + size
        while at < end:
            kind, _, header, padded, compressed = struct.unpack_from("<HHIQI", binary, at)
            (architecture,) = struct.unpack_from("<I", binary, at + 28)
            (size,) = struct.unpack_from("<Q", binary, at + 56)
            content = binary[at + header : at + header + compressed]
            yield f"{KINDS[kind]}_{architecture}", decompressed(content, size)
            at += header + padded
        begin = binary.find(MAGIC, end)


def decompressed(content: bytes, size: int) -> bytes:
    library = find_zstd()
    assert library is not None
    library.ZSTD_decompress.restype = ctypes.c_size_t
    result = ctypes.create_string_buffer(size)
    source = ctypes.c_char_p(content)
    assert library.ZSTD_decompress(result, ctypes.c_size_t(size), source, ctypes.c_size_t(len(content))) == size
    return result.raw
