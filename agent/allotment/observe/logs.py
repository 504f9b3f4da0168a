"""Log lines: structlog, one line per event on standard error, as JSON or for a person at a console.

Three promises. A line stays a line: control characters and line separators in what comes from outside are escaped.
Logging never stops the agent: a line that nobody reads in time is dropped and counted, and the next one that gets
through says how many are missing. And what other libraries log through the standard `logging` comes out the same way.

A CNI call's line is written after its answer went out, so no runtime waits for it.
"""

from __future__ import annotations

import json
import logging
import os
import select
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from structlog.processors import format_exc_info

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    Event = MutableMapping[str, Any]

__all__ = ["LogSink", "Logger", "configure"]

Logger = structlog.typing.FilteringBoundLogger
"""What `structlog.get_logger()` gives once `configure` has run; for annotations."""

_encode: Final = msgspec.json.Encoder(enc_hook=repr, decimal_format="number").encode

_LEVEL_OF: Final = {"exception": "error", "warn": "warning", "fatal": "critical"}
_COLOURS: Final = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31;1"}


class LogSink:
    """Where lines go: a file descriptor that is written to only when it takes a line without waiting.

    `notice` renders the line that tells how many were dropped; `on_drop` is called for each of them; `dropped` counts
    them since the last line that got through.
    """

    def __init__(self, fd: int, notice: Callable[[int], bytes], on_drop: Callable[[], None] | None = None) -> None:
        self._fd = fd
        self._notice = notice
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._on_drop = on_drop
        self.dropped = 0

    def msg(self, line: bytes) -> None:
        """Write one line, or drop it."""
        if not self._writable():
            self._drop()
            return
        if self.dropped:
            line = self._notice(self.dropped) + b"\n" + line
        try:
            os.write(self._fd, line + b"\n")
        except OSError:  # the reader is gone; there is nobody left to tell
            self._drop()
        else:
            self.dropped = 0

    debug = info = warning = error = critical = log = msg

    def _writable(self) -> bool:
        try:
            return bool(self._poll.poll(0))
        except OSError:
            return False

    def _drop(self) -> None:
        self.dropped += 1
        if self._on_drop is not None:
            self._on_drop()


def configure(
    form: str = "json", level: str = "info", *, fd: int = 2, on_drop: Callable[[], None] | None = None
) -> LogSink:
    """Set up logging for the process: `form` is json or console, `level` the least important one written.

    May be called again: what `structlog.get_logger` gave before follows, what was bound from it doesn't. Returns the
    sink.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer = _json_line if form == "json" else _Console(colour=os.isatty(fd) and "NO_COLOR" not in os.environ)
    sink = LogSink(
        fd, lambda lines: renderer(None, "warning", {"event": "log lines were dropped", "lines": lines}), on_drop
    )
    structlog.configure(
        processors=[renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge()]
    root.setLevel(number)
    logging.captureWarnings(capture=True)
    return sink


class _Bridge(logging.Handler):
    """Hands what was logged through the standard library to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # a format that doesn't fit its arguments is no reason to lose the line
            text = f"{record.msg} {record.args!r}"
        levels = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}
        method = levels.get(record.levelno, "critical" if record.levelno > logging.ERROR else "info")
        fields = {"logger": record.name} | ({"exc_info": record.exc_info} if record.exc_info else {})
        getattr(structlog.get_logger(), method)(text, **fields)


def _json_line(_logger: object, method: str, event: Event) -> bytes:
    # One processor does it all: each further one costs every line two microseconds.
    if "exc_info" in event:
        event = format_exc_info(None, method, event)
    stamp = datetime.now(UTC).isoformat(timespec="microseconds")
    ordered = {"time": stamp[:-6] + "Z", "level": _LEVEL_OF.get(method, method), "event": event.pop("event"), **event}
    try:
        line = _encode(ordered)
    except (TypeError, ValueError):  # a key that isn't text, or text that came from bytes that aren't UTF-8
        line = _ascii(ordered)
    if line.isascii() and b"\x7f" not in line:
        return line
    return _ascii(ordered)  # C1 controls and the separators U+2028 and U+2029 break lines, too


def _ascii(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, ensure_ascii=True, default=repr, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f").encode("ascii")


class _Console:
    """`12:04:31.208 info    answered  verb=ADD network=blue`, in colours on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, _logger: object, method: str, event: Event) -> bytes:
        if "exc_info" in event:
            event = format_exc_info(None, method, event)
        level, text = _LEVEL_OF.get(method, method), _plain(event.pop("event"))
        trace = event.pop("exception", "")
        stamp = f"{datetime.now(UTC).astimezone():%H:%M:%S.%f}"[:-3]
        fields = " ".join(f"{_plain(key)}={_value(value)}" for key, value in event.items())
        word = f"{level:<8}"
        if self._colour:
            word = f"\x1b[{_COLOURS.get(level, '0')}m{word}\x1b[0m"
            text = f"\x1b[1m{text}\x1b[0m"
        lines = [f"{stamp} {word}{text}" + (f"  {fields}" if fields else "")]
        lines += [f"    {_plain(line)}" for line in str(trace).splitlines()]
        return "\n".join(lines).encode("utf-8", "backslashreplace")


def _plain(value: object) -> str:
    """Text in which nothing moves the cursor or ends the line."""
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = _plain(",".join(map(str, value)) if isinstance(value, list | tuple) else value)
    return text if text and not set(text) & {" ", '"', "="} else json.dumps(text, ensure_ascii=False)
