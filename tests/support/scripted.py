"""The scripted engine: a real HTTP server on loopback that says what a test wrote down.

It speaks chat completions and Messages, streamed or not, one thread per connection:

    with ScriptedEngine() as engine:
        engine.call("bash", command="true")
        engine.say("done")
        explorer = engine.when(system="You explore")   # other agents, told apart
        explorer.say("found it", delay_s=0.1)
        ...  # point a client at engine.url (ends in /v1); both wires live there
        assert engine.requests[0].tool_names == ("bash",)

Answers are taken in order from the first lane whose conditions hold and that has one left; a lane's
`always` answer is given when its own list is empty. With nothing left the engine answers 400, which
no client tries again. `engine.respond = function` puts a function of the request in charge instead.

From a shell (cwd or PYTHONPATH = tests): `python -m support.scripted SCRIPT.json [--port N]
[--record FILE]` prints the URL as its first line and serves until its standard input closes (so
give it a pipe) or it is signalled. SCRIPT.json, where answers are fields of `Answer`:

    {"answers": [{"text": "done"}], "always": {"text": "done"},
     "lanes": [{"when": {"system": "..", "tool": "..", "no_tool": "..", "last": ".."},
                "answers": [{"calls": [{"name": "bash", "arguments": {"command": "true"}}]}]}]}
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from support.scripted_answers import Answer, Call, Wire, parse_answer
from support.scripted_http import Handler, Server

__all__ = ["Answer", "Call", "Lane", "ScriptedEngine", "Seen"]


@dataclass(frozen=True)
class Seen:
    """One request as it came. `headers` has lower-case names; `at_s` is monotonic."""

    number: int
    path: str
    wire: Wire
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    at_s: float

    @property
    def system(self) -> str:
        """The system prompt, whichever way it was sent."""
        if self.wire == "anthropic":
            return _flat(self.body.get("system", ""))
        return "\n".join(_flat(m.get("content")) for m in self.messages if m["role"] == "system")

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages as sent."""
        messages: Sequence[Mapping[str, Any]] = self.body.get("messages", [])
        return messages

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools offered, in order."""
        tools = self.body.get("tools", [])
        return tuple(tool.get("name") or tool["function"]["name"] for tool in tools)

    @property
    def last(self) -> str:
        """The text of the last message: the brief, or what a tool returned."""
        return _flat(self.messages[-1].get("content")) if self.messages else ""


def _flat(content: object) -> str:
    """Join the text of a content that may be text, blocks or nothing."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_flat(block.get("text") or block.get("content")) for block in content)


@dataclass
class Lane:
    """Answers for the requests that meet all conditions (text contained, tool offered or not)."""

    system: str = ""
    tool: str = ""
    no_tool: str = ""
    last: str = ""
    answers: list[Answer] = field(default_factory=list)
    always: Answer | None = None

    def say(self, text: str, **more: Any) -> None:
        """Add a text that ends the turn."""
        self.answers.append(Answer(text=text, **more))

    def call(self, name: str, /, **arguments: Any) -> None:
        """Add one tool call."""
        self.answers.append(Answer(calls=(Call(name, arguments),)))

    def calls(self, *calls: Call, text: str = "", **more: Any) -> None:
        """Add several tool calls in one reply."""
        self.answers.append(Answer(text=text, calls=calls, **more))

    def fail(self, status: int, *, retry_after: str = "", **more: Any) -> None:
        """Add an error answer."""
        self.answers.append(Answer(status=status, retry_after=retry_after, **more))

    def holds(self, seen: Seen) -> bool:
        """Say whether the request meets the conditions."""
        return (
            self.system in seen.system
            and self.last in seen.last
            and (not self.tool or self.tool in seen.tool_names)
            and (not self.no_tool or self.no_tool not in seen.tool_names)
        )


class ScriptedEngine(Lane):
    """The server; itself the lane of every request that no other lane answers."""

    def __init__(self, answers: Sequence[Answer] = (), *, port: int = 0) -> None:
        """Bind at once, so that `url` is known; serve from `__enter__` on."""
        super().__init__(answers=list(answers))
        self.respond: Callable[[Seen], Answer] | None = None
        self.requests: list[Seen] = []
        self.looked_up: list[str] = []
        """Paths of GET requests."""
        self.props: Mapping[str, Any] | None = None
        """What /props says, as llama.cpp's server does; None: there is no such page."""
        self.active = 0
        self.most_active = 0
        self.gone = threading.Event()
        """Set when a client has gone away before the end of its reply."""
        self.record: TextIO | None = None
        self.closing = threading.Event()
        self._lanes: list[Lane] = []
        self._lock = threading.Lock()
        self._server = Server(("127.0.0.1", port), Handler)
        self._server.engine = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.005}, daemon=True
        )

    def __enter__(self) -> ScriptedEngine:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop: stalls end, connections close."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """`host:port`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    @property
    def url(self) -> str:
        """The base URL, ending in /v1, of both wires."""
        return f"http://{self.address}/v1"

    def when(self, *, system: str = "", tool: str = "", no_tool: str = "", last: str = "") -> Lane:
        """Add a lane, tried after those added before and before the engine's own answers."""
        lane = Lane(system=system, tool=tool, no_tool=no_tool, last=last)
        self._lanes.append(lane)
        return lane

    def load(self, script: Mapping[str, Any]) -> None:
        """Add what a script of the shape in the module's docstring holds."""
        _fill(self, script)
        for data in script.get("lanes", ()):
            _fill(self.when(**data.get("when", {})), data)

    def take(
        self, path: str, wire: Wire, headers: Mapping[str, str], body: Any
    ) -> tuple[Seen, Answer]:
        """Record a request and return its answer."""
        with self._lock:
            seen = Seen(len(self.requests), path, wire, headers, body, time.monotonic())
            self.requests.append(seen)
            if self.record is not None:
                line = {"number": seen.number, "path": path, "system": seen.system, "body": body}
                print(json.dumps(line), file=self.record, flush=True)
            if self.respond is None:
                return seen, self._next(seen)
        return seen, self.respond(seen)

    def _next(self, seen: Seen) -> Answer:
        for lane in (*self._lanes, self):
            if lane.holds(seen) and (lane.answers or lane.always):
                return lane.answers.pop(0) if lane.answers else lane.always or Answer()
        message = f"the script has no answer for request {seen.number}"
        return Answer(status=400, error={"error": {"type": "script_over", "message": message}})

    def enter(self, step: int) -> None:
        """Count the replies under way; `step` is 1 or -1."""
        with self._lock:
            self.active += step
            self.most_active = max(self.most_active, self.active)


def _fill(lane: Lane, data: Mapping[str, Any]) -> None:
    lane.answers.extend(parse_answer(answer) for answer in data.get("answers", ()))
    if "always" in data:
        lane.always = parse_answer(data["always"])


def main(argv: Sequence[str] | None = None) -> int:
    """Serve a script until standard input closes."""
    parser = argparse.ArgumentParser(prog="python -m support.scripted")
    parser.add_argument("script", help="JSON file, or - for none")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", help="file that gets one JSON line per request")
    args = parser.parse_args(argv)
    engine = ScriptedEngine(port=args.port)
    if args.script != "-":
        with open(args.script, encoding="utf-8") as file:
            engine.load(json.load(file))
    if args.record:
        engine.record = open(args.record, "a", encoding="utf-8")  # noqa: SIM115 - closed at exit
    with engine:
        print(engine.url, flush=True)
        try:
            sys.stdin.read()
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
