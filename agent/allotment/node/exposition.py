"""The agent's state as others see it: gauges read at each scrape, probes, and the log lines of socket and ledger."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from allotment.addressing.lease import Moment
from allotment.addressing.utilization import of_network
from allotment.ledger import LedgerState
from allotment.node.allocations import leases_left
from allotment.node.conditions import condition
from allotment.node.plans import draining
from allotment.node.room import addresses_at_most
from allotment.observe.http import Request, Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.book import LeaseBook
    from allotment.addressing.errors import AllotmentError
    from allotment.cni.exchange import Call, Reply
    from allotment.cni.server import CniServer, Peer
    from allotment.ledger import Ledger
    from allotment.node.view import View
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics, Sample

__all__ = ["Gauges", "LedgerMeter", "SocketWatcher", "http_routes"]


class LedgerMeter:
    """Counts what the ledger does, and says when its state changes."""

    def __init__(self, metrics: Metrics, log: FilteringBoundLogger) -> None:
        self._seconds = metrics.spread("ledger_commit_seconds")
        self._requests = metrics.spread("ledger_batch_size")
        self._refusals = {kind: metrics.count("ledger_errors_total", kind) for kind in ("full", "disk", "busy")}
        self._log = log

    def committed(self, *, seconds: float, requests: int) -> None:
        """One transaction is on disk."""
        self._seconds.observe(seconds)
        self._requests.observe(requests)

    def refused(self, kind: str) -> None:
        """The disk refused."""
        self._refusals[kind].inc()

    def changed(self, state: LedgerState, reason: str) -> None:
        """The ledger is in another state from now on."""
        if state is LedgerState.OPEN:
            self._log.warning("ledger works again")
        else:
            self._log.error("ledger trouble", state=state.value, reason=reason)


class SocketWatcher:
    """Says in the log what went wrong on the socket."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def refused(self, peer: Peer, error: AllotmentError) -> None:
        """A request was not taken."""
        self._log.warning("connection refused", pid=peer.pid, uid=peer.uid, error=error.message)

    def abandoned(self, call: Call, reply: Reply | None) -> None:
        """A caller is gone before it had its answer."""
        self._log.info(
            "caller gone",
            request=call.id,
            verb=call.env.get("CNI_COMMAND"),
            container=call.env.get("CNI_CONTAINERID"),
            answered=reply is not None,
        )

    def failed(self, request_id: str, error: Exception) -> None:
        """A fault of ours."""
        self._log.error("request failed", request=request_id, error=str(error), exc_info=error)


class Gauges:
    """Readers of the gauges that come from the book and the View; asked at each scrape."""

    def __init__(self, book: LeaseBook, view: Callable[[], View], clock: Clock) -> None:
        self._book = book
        self._view = view
        self._clock = clock

    def register(self, metrics: Metrics, ledger: Ledger, server: CniServer) -> None:
        """Have the gauges read at each scrape."""
        metrics.read("addresses", self.addresses)
        metrics.read("blocks", self.blocks)
        metrics.read("drain_leases", self.drains)
        metrics.read("allocation_ready", self.ready)
        metrics.read("addresses_at_most", self.at_most)
        metrics.read("pod_limit", self.pod_limit)
        metrics.read("source_problems", lambda: (((), float(len(self._view().problems))),))
        metrics.read("source_out_of_contact_seconds", lambda: (((), self._out_of_contact()),))
        metrics.read("ledger_state", lambda: [((each,), float(each is ledger.health().state)) for each in LedgerState])
        metrics.read("connections", lambda: ((("cni",), float(server.open_connections)),))

    def _out_of_contact(self) -> float:
        lost = self._view().lost_contact
        return 0.0 if lost is None else self._clock.seconds() - lost

    def addresses(self) -> Iterator[Sample]:
        """Addresses by network, family and state."""
        now = Moment(self._clock.boot, self._clock.seconds())
        for network in self._book.networks():
            use = self._book.use(network, now)
            for family in sorted({subnet.family for subnet in use.subnets}):
                numbers = of_network(use, family)
                for state in ("capacity", "in_use", "reserved", "cooling", "available"):
                    yield (network, str(family), state), float(getattr(numbers, state))

    def blocks(self) -> Iterator[Sample]:
        """Blocks by network and family."""
        for network in self._book.networks():
            plan = self._book.plan(network)
            families = [block.prefix.family for block in plan.blocks] if plan else []
            for family in sorted(set(families)):
                yield (network, str(family)), float(families.count(family))

    def ready(self) -> Iterator[Sample]:
        """What each Allocation's condition Ready was last told to be; no sample before it was."""
        for network, allocation in self._view().allocations.items():
            told = condition(allocation.status, "Ready")
            if told is not None:
                yield (network,), float(told.status == "True")

    def at_most(self) -> Iterator[Sample]:
        """Addresses that a network can have here, by network and family."""
        view = self._view()
        for network in view.allocations:
            for family, count in addresses_at_most(view, network).items():
                yield (network, str(family)), float(count)

    def pod_limit(self) -> Iterator[Sample]:
        """Pods that the kubelet takes; no sample where that isn't known."""
        limit = self._view().pod_limit
        if limit is not None:
            yield (), float(limit)

    def drains(self) -> Iterator[Sample]:
        """Pod leases that each drain waits for."""
        for network, allocation in self._view().allocations.items():
            if draining(allocation, self._view()):
                yield (network,), float(len(leases_left(self._book, network)))


def http_routes(metrics: Metrics, not_ready: Callable[[], str]) -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """`/metrics`, `/healthz` (the loop turns) and `/readyz` (addresses can be given, and the source is in step)."""

    async def exposition(request: Request) -> Response:
        body, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(body, content_type)

    async def healthz(_request: Request) -> Response:
        return Response(b"ok\n")

    async def readyz(_request: Request) -> Response:
        reason = not_ready()
        if reason:
            return Response(f"not ready: {reason}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(b"ok\n")

    return {"/metrics": exposition, "/healthz": healthz, "/readyz": readyz}
