"""Mutated frames against the decoder, for a while: only a frame or a BreachError may come out.

Run: make fuzz. Prints how many were tried and how many still decoded; any other exception is shown
with the bytes that caused it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from rambarde_wire import frames

_SEEDS = [
    frames.encode_up(frames.AskTurn()),
    frames.encode_up(frames.AskPerform(["c1", "c2"])),
    frames.encode_up(frames.AskWrite("c1", b"/w/a", "0" * 64)),
    frames.encode_up(frames.TellResult("c1", True, "", "text" * 50, "f" * 64, 3)),
    frames.encode_up(frames.TellFault("step", 13, "why")),
]
_SPECIAL = [
    b"\x91" * 200,
    b"\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xd6\x00",
    b"\xcb",
]


def mutated(dice: random.Random) -> bytes:
    """One seed with a few bytes changed, cut, doubled or replaced."""
    data = bytearray(dice.choice(_SEEDS))
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0 if at < len(data):
                data[at] = dice.randrange(256)
            case 1:
                del data[at : at + dice.randint(1, 8)]
            case 2:
                data[at:at] = dice.choice(_SPECIAL)
            case _:
                data[at:at] = data[at : at + dice.randint(1, 16)]
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


def main() -> int:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    deadline = time.monotonic() + chosen.seconds
    tried = decoded = 0
    while time.monotonic() < deadline:
        data = mutated(dice)
        tried += 1
        reader = frames.FrameReader(max_bytes=frames.MAX_UP_BYTES)
        try:
            reader.feed(data)
            while (body := reader.next_body()) is not None:
                frames.decode_up(body)
                decoded += 1
        except frames.BreachError:
            continue
        except BaseException as exc:  # noqa: BLE001 - what is looked for
            print(f"seed {chosen.seed}: {type(exc).__name__}: {exc}\n{data.hex()}")
            return 1
    print(f"{tried} frames tried (seed {chosen.seed}), {decoded} decoded, no other exception")
    return 0


if __name__ == "__main__":
    sys.exit(main())
