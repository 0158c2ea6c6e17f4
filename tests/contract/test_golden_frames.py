"""Version 1 of the wire, byte for byte.

A change here is a change of the protocol: raise PROTOCOL_VERSION, then write the new bytes down.
"""

from __future__ import annotations

from typing import get_args

import pytest

from rambarde_wire import frames

_CHECKS = frames.SelfCheck(1000, 1000, 0, 0, 0, 0, 0, 1, 2, 7, {"pid": 9}, [0], 13, 1, 97, 1)

_GOLDEN: list[tuple[frames.UpFrame | frames.DownFrame, str]] = [
    (
        frames.TellHello(1, _CHECKS),
        (
            "000000f883a174a568656c6c6fa776657273696f6e01a6636865636b73de0010a3756964cd03e8a3"
            "676964cd03e8af6361705f696e686572697461626c6500ad6361705f7065726d697474656400ad63"
            "61705f65666665637469766500ac6361705f626f756e64696e6700ab6361705f616d6269656e7400"
            "ac6e6f5f6e65775f707269767301ac736563636f6d705f6d6f646502ac6c616e646c6f636b5f6162"
            "6907aa6e616d6573706163657381a370696409a86f70656e5f6664739100b36f7574736964655f77"
            "726974655f6572726e6f0dad756e73686172655f6572726e6f01ac736f636b65745f6572726e6f61"
            "aa657865635f6572726e6f01"
        ),
    ),
    (
        frames.TellFault("landlock", 38, "no"),
        (
            "0000003684a174a56661756c74ac636c61696d65645f73746570a86c616e646c6f636ba56572726e"
            "6f26ac636c61696d65645f74657874a26e6f"
        ),
    ),
    (frames.AskTurn(), "0000000c81a174a861736b5f7475726e"),
    (
        frames.AskPerform(["c1", "c2"]),
        "0000001f82a174ab61736b5f706572666f726da863616c6c5f69647392a26331a26332",
    ),
    (
        frames.AskWrite("c1", b"/w/caf\xe9", "ab"),
        (
            "0000004084a174a961736b5f7772697465a763616c6c5f6964a26331ac636c61696d65645f706174"
            "68c4072f772f636166e9ae636c61696d65645f736861323536a26162"
        ),
    ),
    (
        frames.TellRead("c1", b"/w/a", "ab"),
        (
            "0000003d84a174a974656c6c5f72656164a763616c6c5f6964a26331ac636c61696d65645f706174"
            "68c4042f772f61ae636c61696d65645f736861323536a26162"
        ),
    ),
    (
        frames.TellWrote("c1", b"/w/a", "ab"),
        (
            "0000004c85a174aa74656c6c5f77726f7465a763616c6c5f6964a26331ac636c61696d65645f7061"
            "7468c4042f772f61ae636c61696d65645f736861323536a26162ac636c61696d65645f64696666a0"
        ),
    ),
    (
        frames.TellResult("c1", True, "", "é", "ff", 3),
        (
            "0000007187a174ab74656c6c5f726573756c74a763616c6c5f6964a26331aa636c61696d65645f6f"
            "6bc3ac636c61696d65645f636f6465a0ac636c61696d65645f74657874a2c3a9b3636c61696d6564"
            "5f66696e6765727072696e74a26666b4636c61696d65645f656c696465645f627974657303"
        ),
    ),
    (
        frames.OrderBegin(b"/w", True, frames.ToolLimits()),
        (
            "0000009384a174a5626567696ea9776f726b7370616365c4022f77a87772697461626c65c3a66c69"
            "6d69747387aa726561645f6c696e6573cd0190ae726561645f6d61785f6c696e6573cd03e8aa6c69"
            "6e655f6368617273cd01f4aa66696c655f6279746573ce01000000a9676c6f625f68697473ccc8ac"
            "726573756c745f6279746573ce00040000aa646966665f6279746573cd4000"
        ),
    ),
    (
        frames.ReplyTurn(False, [frames.Call("c1", "read", b"{}", "child")]),
        (
            "0000004e83a174a47475726ea5656e646564c2a563616c6c739185a763616c6c5f6964a26331a474"
            "6f6f6ca472656164a9617267756d656e7473c4027b7da5706c616365a56368696c64a66a6f696e65"
            "64c2"
        ),
    ),
    (frames.ReplyPerform(["c1"]), "0000001a82a174a9706572666f726d6564a863616c6c5f69647391a26331"),
    (
        frames.ReplyWrite("c1", False, "stale", "re-read"),
        (
            "0000003585a174a57772697465a763616c6c5f6964a26331a7616c6c6f776564c2a4636f6465a573"
            "74616c65a474657874a772652d72656164"
        ),
    ),
    (
        frames.OrderInterrupt("stopped"),
        "0000001c82a174a9696e74657272757074a6726561736f6ea773746f70706564",
    ),
]


def _name(value: object) -> str:
    return type(value).__name__ if isinstance(value, frames.Frame) else ""


@pytest.mark.parametrize(("frame", "golden"), _GOLDEN, ids=_name)
def test_message_has_the_bytes_of_version_1(
    frame: frames.UpFrame | frames.DownFrame, golden: str
) -> None:
    """Each message is encoded to, and decoded from, exactly these bytes."""
    data = bytes.fromhex(golden)
    if isinstance(frame, get_args(frames.UpFrame)):
        assert frames.encode_up(frame) == data
        assert frames.decode_up(data[4:]) == frame
    else:
        assert frames.encode_down(frame) == data
        assert frames.decode_down(data[4:]) == frame


def test_every_message_has_golden_bytes() -> None:
    """A message added to the protocol without bytes written down here is noticed."""
    shown = {type(frame) for frame, _ in _GOLDEN}
    assert shown == {*get_args(frames.UpFrame), *get_args(frames.DownFrame)}
    assert frames.PROTOCOL_VERSION == 1
