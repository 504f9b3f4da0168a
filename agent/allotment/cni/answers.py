"""Errors as the answer a runtime gets: the one place where that is decided.

Source: CNI spec 1.1.0, section 5 "Error" (`cniVersion`, `code`, `msg`, `details`; the exit code is only zero or not).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from allotment.addressing.errors import AllotmentError, InternalError
from allotment.cni.versions import NEWEST, SUPPORTED

__all__ = ["FAILURE", "SUCCESS", "answer"]

SUCCESS: Final = 0
FAILURE: Final = 1

_LONGEST: Final = 4096  # characters of a text: what an error quotes may come from outside and be as long as it likes


def answer(error: BaseException | None, version: str, *, request_id: str = "") -> tuple[bytes, int]:
    """Standard output and exit code for a call that ended so.

    None is the success of DEL, CHECK, GC and STATUS, which say nothing; that of ADD and VERSION has its own body. An
    error that is not of our tree is a fault of ours: the runtime is told the request's ID, by which the log has the
    rest, and no more, since what a foreign error says may be of any kind and length. `version` is what the caller
    asked in; where that is not ours the answer is in our newest.
    """
    if error is None:
        return b"", SUCCESS
    if isinstance(error, AllotmentError):
        code, message, details = error.code, error.message, error.details
    else:
        code, message = InternalError.code, "allotment failed by a fault of its own; its log says more"
        details = ""
    if code == InternalError.code and request_id:
        details = f"{details}; request {request_id}" if details else f"request {request_id}"
    body: dict[str, Any] = {
        "cniVersion": version if version in SUPPORTED else NEWEST,
        "code": code,
        "msg": _cut(message),
    }
    if details:
        body["details"] = _cut(details)
    return msgspec.json.encode(body), FAILURE


def _cut(text: str) -> str:
    # A lone surrogate (a byte of the environment that is not UTF-8) can't be encoded; it is shown escaped.
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()
