"""The error tree of the whole project, drawn once.

    AllotmentError
    ├── VersionError            1    the configuration asks for a CNI version we do not speak
    ├── EnvironmentInvalid      4    a CNI_* variable is missing or malformed
    ├── DecodeError             6    something sent to us cannot be read (frame, JSON)
    ├── ConfigError             7    the network configuration, or an object, says something impossible
    │   ├── UnknownNetwork      7    nobody has told this node of that network
    │   └── NetworkDraining     7    the network is going away here: nothing new is given
    ├── TryAgain               11    could be served later, nothing is wrong with the request
    │   ├── NotAdmitted        11    the network is known, this node may not serve it yet
    │   ├── NetworkClosed      11    the network gives nothing new here; that can be undone
    │   ├── BlockAwaited       11    no address is left, and a further block is on its way
    │   └── LedgerUnavailable  11    the lease cannot be put on disk now
    ├── NotServing             50    this agent can serve no ADD at all (the answer to STATUS)
    │   ├── LedgerDamaged      50    the ledger does not say what was written: set it aside, rebuild it
    │   ├── LedgerTooNew       50    the ledger was written by a newer release
    │   └── StateFolderHeld    50    another agent runs on this state folder, or answers at this socket
    ├── InternalError         100    a fault of ours
    ├── Exhausted             101    no address is left to give
    ├── AddressUnavailable    102    the address asked for is taken, reserved, excluded or foreign
    └── CheckFailed           103    CHECK found something other than what ADD gave

Every error carries the code that a CNI runtime is told (CNI spec 1.1.0, section "Error": 1-99 are the
specification's, 100 and up are the plugin's own), whether asking again unchanged can help, and its reason as one
word, which is what Events and conditions say. They are turned into an answer in one place, `allotment.cni.answers`.
Errors of a library never leave the package that uses it: they are chained (`raise … from error`) below one of these.

A message says what happened, to what, and what to do about it.
"""

# ruff: noqa: N818  # the names say what happened or what to do; an "Error" at the end would add nothing

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from allotment.addressing.address import Family

from allotment.addressing.reasons import Reason

__all__ = [
    "AddressUnavailable",
    "AllotmentError",
    "BlockAwaited",
    "CheckFailed",
    "ConfigError",
    "DecodeError",
    "EnvironmentInvalid",
    "Exhausted",
    "InternalError",
    "LedgerDamaged",
    "LedgerTooNew",
    "LedgerUnavailable",
    "NetworkClosed",
    "NetworkDraining",
    "NotAdmitted",
    "NotServing",
    "StateFolderHeld",
    "TryAgain",
    "UnknownNetwork",
    "VersionError",
]


class AllotmentError(Exception):
    """The root of everything we raise on purpose.

    `message` is one sentence for a person; `details` may add what a person needs to look further. `reason` is that of
    the class unless something closer is known.
    """

    code: ClassVar[int] = 100
    retryable: ClassVar[bool] = False
    reason: Reason = Reason.INTERNAL

    def __init__(self, message: str, details: str = "", *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        if reason is not None:
            self.reason = reason


class VersionError(AllotmentError):
    """The configuration asks for a CNI version we do not speak."""

    code = 1
    reason = Reason.INVALID


class EnvironmentInvalid(AllotmentError):
    """A CNI_* variable is missing or malformed."""

    code = 4
    reason = Reason.INVALID


class DecodeError(AllotmentError):
    """Something sent to us cannot be read."""

    code = 6
    reason = Reason.INVALID


class ConfigError(AllotmentError):
    """A configuration or an object says something impossible."""

    code = 7
    reason = Reason.INVALID


class UnknownNetwork(ConfigError):
    """Nobody has told this node of that network."""

    reason = Reason.UNKNOWN


class NetworkDraining(ConfigError):
    """The network is going away here; releases are still accepted."""

    reason = Reason.DRAINING


class TryAgain(AllotmentError):
    """Could be served later; nothing is wrong with the request."""

    code = 11
    retryable = True
    reason = Reason.TEMPORARY


class NotAdmitted(TryAgain):
    """The network is known, but this node may not hand out its addresses yet."""

    reason = Reason.NOT_ADMITTED


class NetworkClosed(TryAgain):
    """The network keeps what it has on this node and gives nothing new, until it is opened again."""

    reason = Reason.CLOSED


class BlockAwaited(TryAgain):
    """No address is left to give now, but this node has asked for a further block."""

    reason = Reason.EXHAUSTED


class LedgerUnavailable(TryAgain):
    """The lease cannot be put on disk now, so it is not given (I2)."""

    reason = Reason.LEDGER


class NotServing(AllotmentError):
    """This agent can serve no ADD at all."""

    code = 50
    retryable = True
    reason = Reason.NOT_SERVING


class LedgerDamaged(NotServing):
    """The ledger on disk does not say what was written to it; it is set aside and rebuilt (I15)."""

    retryable = False


class LedgerTooNew(NotServing):
    """The ledger was written by a newer release; this one leaves it alone."""

    retryable = False


class StateFolderHeld(NotServing):
    """Another agent runs on the same state folder; the message says which."""

    retryable = False


class InternalError(AllotmentError):
    """A fault of ours; the cause is chained and in the log."""

    code = 100


class Exhausted(AllotmentError):
    """No address is left to give.

    `families` are those of which a further block would help.
    """

    code = 101
    retryable = True
    reason = Reason.EXHAUSTED

    def __init__(
        self, message: str, details: str = "", *, reason: Reason | None = None, families: tuple[Family, ...] = ()
    ) -> None:
        super().__init__(message, details, reason=reason)
        self.families = families


class AddressUnavailable(AllotmentError):
    """The address asked for is taken, reserved, excluded or foreign; the message says by whom or why."""

    code = 102
    reason = Reason.UNAVAILABLE


class CheckFailed(AllotmentError):
    """CHECK found something other than what ADD gave."""

    code = 103
