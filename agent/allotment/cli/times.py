"""Times and durations as people write and read them. Local time, since that is what a person has on the wall."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Self

from allotment.addressing.errors import ConfigError

__all__ = ["Stamp", "ago", "local", "parse_time", "short", "span"]

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class Stamp(str):
    """A time in a row: RFC 3339 as it stands, for programs; a column makes of `time` what a person reads."""

    __slots__ = ("time",)

    time: datetime

    def __new__(cls, time: datetime) -> Self:
        """The text of `time`, in UTC, to the millisecond."""
        text = time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        stamp = super().__new__(cls, text)
        stamp.time = time
        return stamp

    def age(self, now: datetime) -> str:
        """How long ago it was, in few characters."""
        return span((now - self.time).total_seconds())


def local(time: datetime) -> str:
    """`2026-11-29 14:03:22`, in this machine's time zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short(time: datetime) -> str:
    """`11-29 14:03:22`, for narrow tables."""
    return time.astimezone().strftime("%m-%d %H:%M:%S")


def span(seconds: float) -> str:
    """A duration in at most two units: `3d 4h`, `2m 5s`, `0s`."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or (parts and len(parts) < 2):
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0s"


def ago(time: datetime, now: datetime) -> str:
    """How long it is past: `3h 12m ago`; a time that the wall clock has not reached is named as that."""
    seconds = (now - time).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"{span(-seconds)} ahead of this machine's clock"


def parse_time(text: str, now: datetime) -> datetime:
    """A time that a person wrote: RFC 3339, a date with a time, or a time alone, which is the latest past one.

    Without a zone it is this machine's local time.

    Raises:
        ConfigError: it is no time.
    """
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
        today = now.astimezone().date()
        try:
            time = datetime.fromisoformat(f"{today.isoformat()}T{text.zfill(5 if text.count(':') == 1 else 8)}")
        except ValueError as error:
            raise _no_time(text) from error
        time = time.astimezone()
        return (time if time <= now else time - timedelta(days=1)).astimezone(UTC)
    if "T" not in text.upper() and " " not in text:
        raise _no_time(text)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError as error:
        raise _no_time(text) from error


def _no_time(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no time; write it like 14:03, 2026-11-29 14:03 or 2026-11-29T14:03:00Z")
