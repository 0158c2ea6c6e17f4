"""An interpreter of classic BPF over seccomp data, written from the kernel's documentation.

It shares nothing with the assembler it judges, and refuses what the kernel refuses: unknown codes,
jumps out of the program, loads past the data, an end without an answer.

Source: linux/filter.h, linux/bpf_common.h, linux/seccomp.h; seccomp(2).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

ALLOW = 0x7FFF0000
KILL = 0x80000000
ERRNO = 0x00050000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_DATA_BYTES = 64
_MASK32 = 0xFFFFFFFF


class BadProgramError(Exception):
    """The kernel would not load this program."""


@dataclass(frozen=True)
class Instruction:
    """struct sock_filter."""

    code: int
    yes: int
    no: int
    value: int


@functools.lru_cache(maxsize=64)
def read(program: bytes) -> list[Instruction]:
    """The instructions of a program, checked as the kernel checks them when it loads one."""
    if len(program) % 8 or not 0 < len(program) // 8 <= 4096:
        raise BadProgramError(f"{len(program)} bytes")
    found = [Instruction(*fields) for fields in struct.iter_unpack("<HBBI", program)]
    for place, one in enumerate(found):
        _check(one, place, len(found))
    if found[-1].code != 0x06:
        raise BadProgramError("the last instruction does not answer")
    return found


def _check(one: Instruction, place: int, length: int) -> None:
    if one.code == 0x20:
        if one.value % 4 or one.value + 4 > _DATA_BYTES:
            raise BadProgramError(f"{place}: load at {one.value}")
    elif one.code in (0x15, 0x25, 0x35, 0x45):
        if place + 1 + max(one.yes, one.no) >= length:
            raise BadProgramError(f"{place}: jump out of the program")
    elif one.code == 0x05:
        if place + 1 + one.value >= length:
            raise BadProgramError(f"{place}: jump out of the program")
    elif one.code not in (0x06, 0x54):
        raise BadProgramError(f"{place}: code {one.code:#x}")


def run(program: bytes, number: int, arguments: Sequence[int] = (), *, arch: int) -> int:
    """The program's answer to a call: ALLOW, KILL, or ERRNO with an errno in its low bits.

    Args:
        program: struct sock_filter[].
        number: of the call, as the kernel has it (32 bits).
        arguments: up to six, 64 bits each; those left out are 0.
        arch: AUDIT_ARCH_*.
    """
    filled = [value & (1 << 64) - 1 for value in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("<IIQ6Q", number & _MASK32, arch, 0x7F0000001000, *filled)
    code = read(program)
    place = accumulator = 0
    while True:  # a program only jumps forward, so it ends
        one = code[place]
        place += 1
        match one.code:
            case 0x20:
                accumulator = int.from_bytes(data[one.value : one.value + 4], "little")
            case 0x54:
                accumulator &= one.value
            case 0x15:
                place += one.yes if accumulator == one.value else one.no
            case 0x25:
                place += one.yes if accumulator > one.value else one.no
            case 0x35:
                place += one.yes if accumulator >= one.value else one.no
            case 0x45:
                place += one.yes if accumulator & one.value else one.no
            case 0x05:
                place += one.value
            case _:
                return one.value


def denied(answer: int) -> int:
    """The errno of an answer; 0 for one that allows."""
    if answer == ALLOW:
        return 0
    if answer & 0xFFFF0000 != ERRNO:
        raise AssertionError(f"{answer:#x} neither allows nor denies")
    return answer & 0xFFFF
