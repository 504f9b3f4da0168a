"""One exchange over the socket: what is asked, what is answered, and who answers.

A caller asks once per connection. It gets one answer, and says with one byte that it has printed it; an answer that
was never acknowledged never happened, so whoever gave it takes back what it granted (`Handler.lost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SPOOL", "STARTED", "Call", "Handler", "Reply"]

SPOOL: Final = 1
"""`Reply.flags`: the caller is to keep this DEL in the spool itself, and then to report success."""

STARTED: Final = "CNI_ALLOTMENT_STARTED"
"""The variable in which the shim says when a GC was asked for, in nanoseconds of CLOCK_BOOTTIME."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One CNI call as it came in: nothing in it has been looked at yet."""

    id: str  # unique in this process; for the log
    env: Mapping[str, str]  # the CNI_* variables alone
    body: bytes  # standard input
    received: float  # Clock.seconds() when the whole of it was here
    peer_pid: int  # of the caller, in the agent's PID namespace; 0 where it lives outside of it


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What the caller prints to its standard output, and the code it exits with (0-255)."""

    body: bytes
    exit_code: int = 0
    flags: int = 0


class Handler(Protocol):
    """Who answers. Errors of the error tree become answers; anything else becomes an InternalError's answer."""

    async def call(self, call: Call) -> Reply:
        """Answer one CNI call.

        It begins in no task (`cni.begun`), and is cancelled when the caller hangs up while it waits. A handler past
        the point of no return sees to it that what it did is undone, and lets CancelledError pass; or it returns its
        reply, which is then `lost`.
        """
        ...

    def acknowledged(self, call: Call) -> None:
        """The caller has printed the reply to `call`: it holds. Must not raise."""
        ...

    async def lost(self, call: Call, reply: Reply) -> None:
        """`call` returned `reply`, and the caller is not known to have printed it: undo what it granted."""
        ...

    async def query(self, name: str, arguments: bytes) -> bytes:
        """Answer one question of the CLI; `arguments` and the answer are JSON. Changes nothing that can be lost."""
        ...
