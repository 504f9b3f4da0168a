"""Whether a command printed what a page says it prints, apart from what is different each time."""

from __future__ import annotations

import re

__all__ = ["agrees", "plain"]

_EACH_TIME = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "TIME"),
    (r"(\d{4}-)?\d\d-\d\d \d\d:\d\d(:\d\d)?", "TIME"),
    (r"\b\d{8}T\d{6}Z(-\d+)?\b", "STAMP"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
    (r"\b\d{20}-\d+\.del\b", "ENTRY.del"),
    (r"\b\d+(\.\d+)? (B|KiB|MiB|GiB|TiB)\b", "SIZE"),
    (r"\b(process|pid|PID) \d+\b", "PROCESS"),
    (r"(?<![\w.:/-])\d+[dhms](?: \d+[dhms])?(?=[\s),:]|$)", "AGE"),
    (r"\bin \d+ s\b", "in N s"),
    (r"\b[0-9a-f]{6}-\d+\b", "REQUEST"),
    (r'"milliseconds":[0-9.]+', '"milliseconds":N'),
    (r"\bveth[0-9a-f]{8}\b", "VETH"),
    (r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", "MAC"),
    (r"\bfe80::[0-9a-f:]+\b", "LINK-LOCAL"),
    (r"\b[0-9./]+ ms\b", "N ms"),
    (r"=[0-9.]+ ms\b", "=N ms"),
)


def plain(text: str) -> str:
    """`text` without what is different each time, and with a space for every run of blanks and line ends."""
    text = " ".join(text.split())
    for pattern, word in _EACH_TIME:
        text = re.sub(pattern, word, text)
    return text


def agrees(said: str, printed: str) -> bool:
    """Whether what was printed is what was said; `…` in it stands for anything."""
    pieces = [plain(piece) for piece in said.split("…")]
    pattern = r".*".join(re.escape(piece) for piece in pieces)
    return re.fullmatch(rf"\s*{pattern}\s*", plain(printed)) is not None
