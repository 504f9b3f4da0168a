"""CNI calls from the socket to the attachments and back: parse, do, answer, count, and say so in one log line."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from allotment.addressing.edges import LINK_LOCAL_GATEWAY, block_gateway
from allotment.addressing.errors import AllotmentError, ConfigError, LedgerUnavailable
from allotment.addressing.lease import Moment
from allotment.cni import result
from allotment.cni.answers import answer
from allotment.cni.exchange import SPOOL, STARTED, Call, Reply
from allotment.cni.request import CniRequest, Verb, parse_request
from allotment.cni.versions import told_version, version_result
from allotment.node.notices.refusals import refusal_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.lease import Lease
    from allotment.node.attaching.attachments import Attached, Attachments
    from allotment.node.notices.board import Notices
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics

__all__ = ["CniHandler"]

_NANOSECONDS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class CniHandler:
    """What the socket server hands its calls to."""

    def __init__(
        self,
        attachments: Attachments,
        book: LeaseBook,
        clock: Clock,
        metrics: Metrics,
        log: FilteringBoundLogger,
        notices: Notices,
        queries: Mapping[str, Callable[[bytes], Awaitable[bytes]]],
    ) -> None:
        self._attachments = attachments
        self._book = book
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._notices = notices
        self._queries = queries
        self._attached: dict[str, Attached] = {}
        self._hang_ups = metrics.count("hang_ups_total")

    async def call(self, call: Call) -> Reply:
        """Answer one CNI call. Cancelled when the caller hangs up; what it granted is then taken back."""
        request: CniRequest | None = None
        error: Exception | None = None
        body, flags = b"", 0
        leases: tuple[Lease, ...] = ()
        try:
            request = parse_request(call.env, call.body)
            body, leases = await self._do(request, call)
        except asyncio.CancelledError:
            self._hang_ups.inc()
            self._record(call, request, (), None, outcome="hung up")
            raise
        except LedgerUnavailable as unavailable:
            error = unavailable
            if request is not None and request.verb is Verb.DEL:
                flags = SPOOL  # a pod must be able to end: the shim keeps the DEL until the disk is back
        except AllotmentError as refused:
            error = refused
        except Exception as fault:  # noqa: BLE001  # whatever it is, the runtime gets an answer and the log the rest
            error = fault
        exit_code = 0
        if error is not None:
            body, exit_code = answer(
                error, request.cni_version if request else told_version(call.body), request_id=call.id
            )
        # The line is written once the answer is on its way: nobody waits for a log.
        asyncio.get_running_loop().call_soon(self._record, call, request, leases, error)
        return Reply(body, exit_code, flags)

    def acknowledged(self, call: Call) -> None:
        """The caller has printed its answer."""
        attached = self._attached.pop(call.id, None)
        if attached is not None:
            self._attachments.acknowledged(attached)

    async def lost(self, call: Call, reply: Reply) -> None:
        """The caller is gone without having acknowledged: undo what the call granted."""
        attached = self._attached.pop(call.id, None)
        if attached is not None:
            self._hang_ups.inc()
            await self._attachments.lost(attached, call.id)

    async def query(self, name: str, arguments: bytes) -> bytes:
        """Answer one question of the CLI.

        Raises:
            ConfigError: nobody knows that question.
        """
        ask = self._queries.get(name)
        if ask is None:
            raise ConfigError(
                f"this agent knows no question {name!r}; is the command newer than the agent? "
                f"Known are {', '.join(sorted(self._queries))}"
            )
        return await ask(arguments)

    async def _do(self, request: CniRequest, call: Call) -> tuple[bytes, tuple[Lease, ...]]:
        match request.verb:
            case Verb.ADD:
                if request.passes_through:
                    return result.passed_through(request), ()
                attached = await self._attachments.add(request, call.id)
                self._attached[call.id] = attached
                return result.add_result(request, [self._told(lease) for lease in attached.leases]), attached.leases
            case Verb.DEL:
                if request.passes_through:
                    return b"", ()
                return b"", await self._attachments.delete(request, call.id)
            case Verb.CHECK:
                if not request.passes_through:
                    result.check(request, self._attachments.check(request))
                return b"", ()
            case Verb.GC:
                return b"", await self._attachments.collect(request, self._began(call), call.id)
            case Verb.STATUS:
                self._attachments.status(None if request.passes_through else request.network)
                return b"", ()
            case Verb.VERSION:
                return version_result(request.cni_version), ()

    def _began(self, call: Call) -> Moment:
        """When a call began: with the start of its process, which may have waited long for an agent to come up.

        Its process can't be seen from a PID namespace of the agent's own; then it is what the shim says itself, or
        (the caller is another) when the call came in. The earliest counts: it frees the least.
        """
        moments = [call.received]
        started = self._clock.started(call.peer_pid)
        if started is not None:
            moments.append(started)
        said = call.env.get(STARTED, "")
        if _NANOSECONDS.fullmatch(said):
            moments.append(int(said) / 1e9)
        return Moment(self._clock.boot, min(moments))

    def _told(self, lease: Lease) -> result.ToldAddress:
        """The lease as the pod is told it: with its block's length and gateway."""
        plan = self._book.plan(lease.owner.network)
        for block in plan.blocks if plan is not None else ():
            if block.prefix == lease.block:
                length, gateway = block.length, block.gateway
                break
        else:  # the block is no longer ours, the lease still holds: told as it was
            length, gateway = lease.block.length, block_gateway(lease.block)
        return result.ToldAddress(lease.address, length, gateway or LINK_LOCAL_GATEWAY[lease.address.family])

    def _record(
        self,
        call: Call,
        request: CniRequest | None,
        leases: tuple[Lease, ...],
        error: Exception | None,
        outcome: str = "",
    ) -> None:
        seconds = self._clock.seconds() - call.received
        verb = request.verb.value if request is not None else call.env.get("CNI_COMMAND", "")[:16]
        code = 0 if error is None else error.code if isinstance(error, AllotmentError) else 100
        self._metrics.request(verb, code, seconds)
        if verb == Verb.STATUS and error is None:
            return  # every five seconds, and nothing to tell
        fields: dict[str, object] = {
            "request": call.id,
            "verb": verb,
            "network": request.network if request is not None else None,
            "pod": f"{request.pod_namespace}/{request.pod_name}" if request is not None and request.pod_name else None,
            "container": request.container_id if request is not None else call.env.get("CNI_CONTAINERID"),
            "interface": request.interface if request is not None else None,
            "addresses": [str(lease.address) for lease in leases] or None,
            "milliseconds": round(seconds * 1000, 3),
            "outcome": outcome or ("ok" if error is None else "refused" if code != 100 else "failed"),
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        if error is not None and request is not None and request.verb is Verb.ADD:
            reason, message, subjects = refusal_of(request, error)
            self._notices.tell(reason, message, *subjects)
        if error is None:
            self._log.info("cni call", **fields)
        elif isinstance(error, AllotmentError) and code != 100:
            self._log.warning("cni call", code=code, error=error.message, **fields)
        else:
            self._log.error("cni call", code=code, error=str(error), exc_info=error, **fields)
