"""The HTTP side of the scripted engine: sends an answer whole, broken or not at all.

Every byte goes through `Handler._put`, which knows where an answer is to be cut or to fall silent.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from support.scripted_answers import Answer, Wire, error_body, stream, whole


class Asked(Protocol):
    """What is needed of a recorded request."""

    @property
    def number(self) -> int: ...
    @property
    def wire(self) -> Wire: ...
    @property
    def body(self) -> Mapping[str, Any]: ...


class Engine(Protocol):
    """What is needed of the engine."""

    closing: threading.Event
    gone: threading.Event
    looked_up: list[str]
    props: Mapping[str, Any] | None

    def take(
        self, path: str, wire: Wire, headers: Mapping[str, str], body: Any
    ) -> tuple[Asked, Answer]: ...
    def enter(self, step: int) -> None: ...


class Server(ThreadingHTTPServer):
    """One thread per connection, none of which keeps the process alive."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    engine: Engine

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is part of the tests; other faults must be seen."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _EndOfAnswerError(Exception):
    """The answer is to be cut here."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    _sent = 0

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Answer what clients look up before they talk."""
        engine = self.server.engine
        engine.looked_up.append(self.path)
        if self.path == "/health":
            self._json(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        elif self.path == "/props" and engine.props is not None:
            self._json(200, engine.props)
        else:
            self._json(404, {"error": {"message": "not found", "type": "not_found_error"}})

    def do_POST(self) -> None:
        """Answer a request to a model."""
        engine = self.server.engine
        wires: dict[str, Wire] = {"/v1/chat/completions": "openai", "/v1/messages": "anthropic"}
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        wire = wires.get(self.path)
        if wire is None:
            self._json(404, {"error": {"message": "not found", "type": "not_found_error"}})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen, answer = engine.take(self.path, wire, headers, json.loads(raw))
        engine.enter(1)
        try:
            self._answer(seen, answer)
        except _EndOfAnswerError:
            self._hang_up()
        except OSError:
            engine.gone.set()
            self.close_connection = True
        finally:
            engine.enter(-1)

    def _answer(self, seen: Asked, answer: Answer) -> None:
        self._pause(answer.delay_s)
        if answer.status != 200:
            more = {"Retry-After": answer.retry_after} if answer.retry_after else {}
            self._json(answer.status, error_body(seen.wire, answer), more)
        elif not seen.body.get("stream") and answer.raw is None:
            self._json(200, whole(seen.wire, answer, seen.number))
        else:
            self._stream(seen, answer)

    def _stream(self, seen: Asked, answer: Answer) -> None:
        self._sent = 0
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if answer.raw is not None:
            self._put(answer.raw, answer)
        elif answer.flood_bytes:
            self._flood(answer)
        else:
            for name, data in stream(seen.wire, answer, seen.number):
                head = f"event: {name}\n" if name else ""
                self._put(f"{head}data: {json.dumps(data)}\n\n".encode(), answer)
                self._pause(answer.between_s)
            if seen.wire == "openai" and answer.done and answer.stream_error is None:
                self._put(b"data: [DONE]\n\n", answer)
        self.wfile.write(b"0\r\n\r\n")

    def _flood(self, answer: Answer) -> None:
        block = b"x" * 65536
        self._put(b'data: {"choices":[{"delta":{"content":"', answer)
        for _ in range(-(-answer.flood_bytes // len(block))):
            self._put(block, answer)

    def _put(self, data: bytes, answer: Answer) -> None:
        """Send one chunk, up to where the answer is to be cut or to fall silent."""
        bounds = [b for b in (answer.cut_after_bytes, answer.stall_after_bytes) if b is not None]
        part = data[: max(0, min(bounds) - self._sent)] if bounds else data
        if part:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self._sent += len(part)
        if len(part) == len(data):
            return
        if answer.stall_after_bytes is not None:
            self._wait_for_the_end()
        raise _EndOfAnswerError

    def _wait_for_the_end(self) -> None:
        """Stay silent until the client goes away or the engine closes."""
        self.connection.settimeout(0.02)
        while not self.server.engine.closing.is_set():
            try:
                if not self.connection.recv(1):
                    self.server.engine.gone.set()
                    return
            except TimeoutError:
                continue

    def _pause(self, seconds: float) -> None:
        if seconds and self.server.engine.closing.wait(seconds):
            raise _EndOfAnswerError

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def _json(self, status: int, data: object, more: Mapping[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
