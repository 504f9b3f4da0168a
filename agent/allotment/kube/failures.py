"""What can go wrong with a request to the API server.

    ApiFailure
    ├── Unreachable      11    no answer, or one that says nothing (5xx); a write may have been done
    │   └── Silent       11    nothing was heard for the idle timeout, or the peer stopped answering
    ├── TooManyRequests  11    429, or 503 with Retry-After: ask later
    ├── Unserved         11    404 for the kind itself: its CRD is missing, or too new
    ├── Forbidden        11    403: the role does not allow it
    │   └── Unauthorized 11    401, also after the credentials were read again
    ├── Conflict         11    409: the object is not what it was; look again
    ├── Expired          11    410: what was asked for is history; list again
    ├── NotFound          7    there is no such object, or another one (another UID) under its name
    ├── AlreadyExists     7    there is one under that name
    ├── Terminating       7    it, or its namespace, is being deleted: nothing new is accepted (DESIGN I9)
    ├── Invalid           7    400, 422: the API server refuses what it was sent
    └── Unreadable        6    the answer is not what the kind looks like

Which answer means what is decided here alone (`failure_of`); the rules are those that a real API server was seen to
follow.
"""

# ruff: noqa: N818  # as in addressing.errors: the names say what happened

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from allotment.addressing.errors import AllotmentError, ConfigError, DecodeError, TryAgain
from allotment.api.meta import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AlreadyExists",
    "ApiFailure",
    "Ask",
    "Conflict",
    "Expired",
    "Forbidden",
    "Invalid",
    "NotFound",
    "Silent",
    "Status",
    "Terminating",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "Unreadable",
    "Unserved",
    "failure_of",
    "failure_of_status",
]

_MESSAGE_LIMIT: Final = 600


class ApiFailure(AllotmentError):
    """A request to the API server failed. `status` is the HTTP status, 0 where there was no answer.

    `retry_after` is how many seconds the server wants to be left alone for, 0 where it doesn't say.
    """

    def __init__(self, message: str, details: str = "", *, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message, details)
        self.status = status
        self.retry_after = retry_after


class Unreachable(ApiFailure, TryAgain):
    """The API server gave no answer that means anything. `sent`: it may have done what it was asked."""

    def __init__(
        self, message: str, details: str = "", *, status: int = 0, retry_after: float = 0.0, sent: bool = True
    ) -> None:
        super().__init__(message, details, status=status, retry_after=retry_after)
        self.sent = sent


class Silent(Unreachable):
    """Nothing was heard for so long that the line counts as dead; it may have been for all that time."""


class TooManyRequests(ApiFailure, TryAgain):
    """The API server is busy, or not ready for this kind yet."""


class Unserved(ApiFailure, TryAgain):
    """The API server does not serve this kind; that says nothing about whether there are objects of it."""


class Forbidden(ApiFailure, TryAgain):
    """The account may not do this; that can be mended while we run."""


class Unauthorized(Forbidden):
    """The API server doesn't know who we are."""


class Conflict(ApiFailure, TryAgain):
    """The object has changed since it was read, or is another one."""


class Expired(ApiFailure, TryAgain):
    """The resourceVersion, or the rest of a list, is no longer kept."""


class NotFound(ApiFailure, ConfigError):
    """The object that was meant is gone."""


class AlreadyExists(ApiFailure, ConfigError):
    """The name is taken."""


class Terminating(ApiFailure, ConfigError):
    """There is no way back: the object, or its namespace, is being deleted."""


class Invalid(ApiFailure, ConfigError):
    """The API server says that what it was sent makes no sense."""


class Unreadable(ApiFailure, DecodeError):
    """The answer can't be decoded to the kind's type."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked of which object, for messages. `verb` is RBAC's."""

    verb: str
    kind: str
    resource: str
    key: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        what = f"{self.subresource} of " if self.subresource else ""
        return f"{self.verb} {what}{self.kind} {self.key}" if self.key else f"{self.verb} {self.resource}"

    @property
    def rule(self) -> str:
        """The right that it takes."""
        part = "/status" if self.subresource == "status" else ""
        return f"{self.verb} on {self.resource}{part}"


class Cause(Record, frozen=True):
    """metav1.StatusCause."""

    reason: str = ""
    field: str = ""
    message: str = ""


class Details(Record, frozen=True):
    """metav1.StatusDetails."""

    name: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: float = 0.0


class Status(Record, frozen=True):
    """metav1.Status: how the API server says that something failed."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


_decode_status: Final = msgspec.json.Decoder(Status).decode


def failure_of(ask: Ask, code: int, body: bytes, headers: Mapping[str, str]) -> ApiFailure:
    """The failure that an answer other than 2xx stands for."""
    try:
        status = _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page, or plain text
        status = Status(message=body[:_MESSAGE_LIMIT].decode("utf-8", "replace").strip())
    wanted = headers.get("Retry-After", "")
    wait = float(wanted) if wanted.isdecimal() else 0.0
    return failure_of_status(ask, msgspec.structs.replace(status, code=code), wait)


def failure_of_status(ask: Ask, status: Status, retry_after: float = 0.0) -> ApiFailure:
    """The failure that a Status stands for, as an answer or as an ERROR event of a watch."""
    details = status.details or Details()
    said = status.message[:_MESSAGE_LIMIT] or f"HTTP {status.code}"
    retry_after = retry_after or details.retry_after_seconds
    code, causes = status.code, {cause.reason for cause in details.causes}
    if code == 429 or (code == 503 and retry_after):
        message = f"{ask}: the API server is busy, or not ready: {said}; it is asked again"
        return TooManyRequests(message, status=code, retry_after=retry_after or 1.0)
    if code == 504 and "ResourceVersionTooLarge" in causes:
        # We have seen a newer state than this server: it lags behind, or its etcd was restored from a backup.
        message = f"{ask}: the API server is older than what we have seen; list again"
        return Expired(message, said, status=code)
    if code in _MEANINGS:
        kind, message = _MEANINGS[code]
        return kind(f"{ask}: {message}", said, status=code)
    if code in {403, 404, 409, 400, 422}:
        return _about_object(ask, status, said, causes, {cause.field for cause in details.causes})
    message = f"{ask}: the API server answered {code}: {said}; look at its log"
    return Unreachable(message, status=code, retry_after=retry_after)


_MEANINGS: Final[Mapping[int, tuple[type[ApiFailure], str]]] = {
    401: (Unauthorized, "the API server does not accept our credentials; renew them"),
    410: (Expired, "the API server no longer keeps that version; list again"),
}
# The words come from the registry, or (where it changed while the request ran) from the storage.
_UID_PRECONDITION: Final = re.compile(r"\bUID in (the )?precondition")
_ANOTHER: Final = "the object that was meant is gone, another one has its name"


def _about_object(ask: Ask, status: Status, said: str, causes: set[str], fields: set[str]) -> ApiFailure:
    """What an answer says of the object itself; some codes stand for more than one thing."""
    code = status.code
    match code:
        case 403 if "NamespaceTerminating" in causes:
            return Terminating(f"{ask}: its namespace is being deleted", said, status=code)
        case 403:
            message = f"{ask}: not allowed; the role needs {ask.rule}, or a policy forbids it: {said}"
            return Forbidden(message, status=code)
        case 404 if status.details is not None and status.details.name:
            return NotFound(f"{ask}: there is no such object (any more)", said, status=code)
        case 404:
            return Unserved(f"{ask}: the API server does not serve {ask.resource}; install its CRD", said, status=code)
        case 409 if status.reason == "AlreadyExists":
            return AlreadyExists(f"{ask}: the name is taken", said, status=code)
        case 409 if _UID_PRECONDITION.search(said):
            return NotFound(f"{ask}: {_ANOTHER}", said, status=code)
        case 409:
            return Conflict(f"{ask}: it has changed meanwhile; read it again", said, status=code)
        case 422 if "metadata.finalizers" in fields:
            return Terminating(f"{ask}: it is being deleted, no finalizer can be added", said, status=code)
        case 422 if "metadata.uid" in fields:
            return NotFound(f"{ask}: {_ANOTHER}", said, status=code)
        case _:
            return Invalid(f"{ask}: the API server refuses it: {said}", status=code)
