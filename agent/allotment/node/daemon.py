"""The composition root of the agent: settings and clock in, one TaskGroup of parts that run until it is stopped.

Order at start (I15): lock the state folder, open the ledger (or set a damaged one aside), load every lease, listen;
from then on DEL and CHECK are served, ADDs wait. Then leases of an earlier boot end, a lost ledger is made again,
the source is heard; and only then is anything handed out.

A part that ends, or fails, takes the process with it: the supervisor outside starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from allotment.addressing.book import LeaseBook
from allotment.addressing.errors import AllotmentError, InternalError, LedgerUnavailable
from allotment.cni.server import CniServer, Limits, bind, refuse_if_answered
from allotment.node.allocations import AllocationKeeper
from allotment.node.attaching.attachments import Attachments
from allotment.node.attaching.second_look import SecondLook
from allotment.node.block_keeper import BlockKeeper
from allotment.node.claims.parts import ClaimParts
from allotment.node.exposition import Gauges, LedgerMeter, SocketWatcher, http_routes
from allotment.node.handler import CniHandler
from allotment.node.inquiries.queries import Queries
from allotment.node.notices.board import Notices
from allotment.node.notices.notice import NODE, this
from allotment.node.notices.table import Happened
from allotment.node.offers import Offers
from allotment.node.opening import Opening
from allotment.node.orphans.search import OrphanSearch
from allotment.node.plans import network_plans
from allotment.node.rebuilding.rebuilder import Rebuilder
from allotment.node.rebuilding.witnesses import Witnesses
from allotment.node.room import too_few
from allotment.node.spool import Spool
from allotment.node.start import start_ledger
from allotment.node.view import View
from allotment.node.view_cache import ViewCache
from allotment.node.vms.parts import VmParts
from allotment.observe.http import HttpServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.plan import NetworkPlan
    from allotment.cri.runtime import Runtime
    from allotment.node.claims.parts import Claims
    from allotment.node.notices.notice import Notice
    from allotment.node.rebuilding.witnesses import NodePods
    from allotment.node.settings import Settings
    from allotment.node.start import Started
    from allotment.node.view import Source
    from allotment.node.vms.parts import Vms
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics
    from allotment.observe.systemd import Notifier

__all__ = ["Agent"]

_UPKEEP = 5.0
_TAKE_BACK = 10.0
"""Seconds that the end grants to what callers hung up on, to be taken back."""
_RETRY = 2.0
_STALE = 120.0
"""Seconds without contact to the source after which the agent no longer says that it is ready, though it serves."""


class _Stopped(Exception):  # noqa: N818  # not an error: the way out of the TaskGroup
    """The agent was told to stop, and has drained."""


class Agent:
    """One node's agent. `run` returns after `stop`, or raises what made it impossible to go on.

    `make_source` is given the state of the ledger's folder once it is locked; `listener` is a socket that somebody
    opened for us (socket activation), else one is bound at the configured path. Where there is a cluster to ask, `pods`
    says which pods are bound to this node, `make_claims` makes what asks for the addresses of L2 networks, `make_vms`
    what knows virtual machines, and `events` takes notices, where they are made Events of.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        notifier: Notifier,
        make_source: Callable[[], Source],
        listener: socket.socket | None = None,
        pods: NodePods | None = None,
        events: Callable[[Notice], None] | None = None,
        make_claims: Callable[[ClaimParts], Claims] | None = None,
        make_vms: Callable[[VmParts], Vms] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._notifier = notifier
        self._make_source = make_source
        self._listener = listener
        self._pods = pods
        self._notices = Notices(metrics, events)
        self._make_claims = make_claims
        self._claims: Claims | None = None
        self._make_vms = make_vms
        self._vms: Vms | None = None
        self._stop = asyncio.Event()
        self._view = View()
        self._cached: View | None = None
        self._unkept = asyncio.Event()
        self._too_few = ""
        self._fault: Callable[[], str] = lambda: ""
        self._waits: Callable[[], str] = lambda: "the agent is starting"

    def stop(self) -> None:
        """Drain and end; may be called from a signal handler of the loop."""
        self._stop.set()

    async def run(self) -> None:
        """Run until stopped.

        Raises:
            AllotmentError: the agent can't start or can't go on; the message says why and what to do.
        """
        book = LeaseBook(self._settings.node)
        meter = LedgerMeter(self._metrics, self._log)
        with start_ledger(self._settings, self._clock, book, meter, self._log) as started:
            try:
                async with asyncio.TaskGroup() as group:
                    await self._compose(group, started, book, meter)
            except* _Stopped:
                pass
            except* AllotmentError as failures:
                raise _first(failures) from failures
            finally:
                await started.ledger.close()

    @property
    def not_ready(self) -> str:
        """Why this agent isn't ready, for a person; empty when it is."""
        return self._waits() or self._fault() or self._out_of_step

    @property
    def _out_of_step(self) -> str:
        """Why what the agent serves from may not be what its source says."""
        view = self._view
        if not view.synced and not view.doubted:
            return "the source of objects has not been read yet"
        lost = 0.0 if view.lost_contact is None else self._clock.seconds() - view.lost_contact
        if lost > _STALE and not view.doubted:
            return f"the source of objects could not be asked for {lost:.0f} s; what was known before is served"
        return view.doubted

    # -- parts ----------------------------------------------------------------------------------------------------

    async def _compose(self, group: asyncio.TaskGroup, started: Started, book: LeaseBook, meter: LedgerMeter) -> None:
        settings, clock, log = self._settings, self._clock, self._log

        def part(name: str, work: Coroutine[None, None, None]) -> None:
            group.create_task(_for_ever(name, work, self._stop), name=name)

        attachments = Attachments(
            book,
            started.ledger,
            clock,
            spawn=group.create_task,
            add_wait=settings.add_wait,
            await_unknown=not settings.standalone,
            gc_enabled=settings.gc,
        )
        self._attachments = attachments
        self._fault = started.ledger.fault
        source = self._make_source()
        cache = ViewCache(started.ledger, local_l2=settings.standalone)
        search = self._orphan_search(book)
        self._opening = self._open_with(started, book, source.place, search)
        keeper = self._allocation_keeper(source, book, started, cache, search)
        if self._make_claims is not None:
            self._claims = self._make_claims(self._claim_parts(started, book))
            attachments.pick_by(self._claims)
            part("claims", self._claims.run())
        if self._make_vms is not None:
            self._vms = self._make_vms(self._vm_parts(book))
            attachments.know_machines(self._vms)
            part("virtual machines", self._vms.run())
        if (runtime := self._find_runtime()) is not None:
            second_look = SecondLook(book, attachments, clock, log, runtime=runtime)
            attachments.after_del(second_look.consider)
            part("second looks", second_look.run())
        spool = Spool(settings.spool_dir, attachments, clock, self._metrics, log)
        attachments.before_repeating(spool.settle)
        self._cached = cache.load()
        queries = Queries(
            book=book,
            ledger=started.ledger,
            view=lambda: self._view,
            attachments=attachments,
            spool=spool,
            settings=settings,
            place=source.place,
            clock=clock,
            not_ready=lambda: self._opening.waits or self._out_of_step,  # it looks at the ledger itself
            orphans=search,
            role=lambda claim: self._claims.role(claim) if self._claims is not None else "",
        )
        handler = CniHandler(attachments, book, clock, self._metrics, log, self._notices, queries.table())
        spool.prepare()
        server = CniServer(
            handler,
            self._listener or _listen(settings.socket),
            clock=clock,
            limits=Limits(connections=settings.request_limit),
            watcher=SocketWatcher(log),
        )
        queries.count_in_flight(lambda: server.working)
        started.ledger.gather_unless(lambda: server.alone)
        server.start()
        Gauges(book, lambda: self._view, clock).register(self._metrics, started.ledger, server)
        if self._cached is not None:
            self._take(self._cached, book, keeper)
        known = self._cached is not None
        part("source", source.run(lambda view: self._take(view, book, keeper), known=known))
        part("allocations", keeper.run())
        part("spool", spool.run())
        part("upkeep", self._upkeep(attachments))
        part("orphans", search.run())
        part("view cache", self._keep_views(cache))
        part("opening", self._opening.run())
        part("ledger", started.ledger.watch())
        part("socket", server.wait())
        http = await self._serve_http()
        group.create_task(self._notifier.keep_alive(clock.sleep), name="watchdog")
        group.create_task(self._until_stopped(server, http), name="stop")

    def _claim_parts(self, started: Started, book: LeaseBook) -> ClaimParts:
        return ClaimParts(
            book=book,
            attachments=self._attachments,
            clock=self._clock,
            metrics=self._metrics,
            node=self._settings.node,
            ledger_id=started.ledger.ledger_id,
            limit=self._settings.claim_wait,
            waits=lambda: self._opening.waits,
        )

    def _vm_parts(self, book: LeaseBook) -> VmParts:
        return VmParts(
            book=book,
            attachments=self._attachments,
            clock=self._clock,
            metrics=self._metrics,
            node=self._settings.node,
            waits=lambda: self._opening.waits,
        )

    def _leases_changed(self, keeper: AllocationKeeper, search: OrphanSearch) -> None:
        keeper.poke()
        search.poke()
        if self._claims is not None:
            self._claims.poke()
        if self._vms is not None:
            self._vms.poke()

    def _allocation_keeper(
        self, source: Source, book: LeaseBook, started: Started, cache: ViewCache, search: OrphanSearch
    ) -> AllocationKeeper:
        """What writes this node's Allocations, awake whenever somebody waits for it."""
        self._offers = Offers(started.ledger, self._replan)
        shortage = self._attachments.shortage
        blocks = BlockKeeper(book, self._clock, self._offers, self._log, short=shortage.of, on_disk=cache.blocks)
        keeper = AllocationKeeper(
            source,
            book,
            self._clock,
            self._log,
            node=self._settings.node,
            ledger_id=started.ledger.ledger_id,
            blocks=blocks,
            fault=started.ledger.fault,
            conflicts=lambda: search.conflicts if search.knows_conflicts else None,
            tell=self._notices.tell,
            waits=lambda: self._opening.waits,
            shut=cache.shut,
        )
        self._opening.on_open(keeper.look_soon)
        self._attachments.on_change(lambda: self._leases_changed(keeper, search))
        shortage.on_change(keeper.look_soon)
        return keeper

    def _look_at_room(self) -> None:
        """Say once that the node takes more pods than it can have addresses for."""
        found = too_few(self._view)
        if found and found != self._too_few:
            self._log.warning("too few addresses", reason=found)
            self._notices.tell(Happened.TOO_FEW, found, NODE)
        self._too_few = found

    def _say_rebuilt(self, message: str) -> None:
        self._notices.tell(Happened.REBUILT, message, *map(this, self._view.allocations.values()))

    def _find_runtime(self) -> Callable[[], Runtime] | None:
        """Finds the container runtime anew each time; None where there is none to ask."""
        places = self._settings.runtime_sockets

        def runtime() -> Runtime:
            from allotment.cri.runtime import find_runtime  # noqa: PLC0415  # most standalone agents ask none

            return find_runtime(places)

        return runtime if places else None

    def _open_with(self, started: Started, book: LeaseBook, place: str, search: OrphanSearch) -> Opening:
        settings, clock = self._settings, self._clock
        rebuilder = Rebuilder(
            started,
            self._attachments,
            Witnesses(settings, clock, runtime=self._find_runtime(), pods=self._pods),
            self._log,
            view=lambda: self._view,
            plans=self._plans,
            tell=search.know,
            rebuilt=self._say_rebuilt,
        )
        opening = Opening(
            started,
            book,
            self._attachments,
            rebuilder,
            clock,
            self._notifier,
            self._log,
            node=settings.node,
            place=place,
            standalone=settings.standalone,
        )
        self._waits = lambda: opening.waits
        return opening

    def _orphan_search(self, book: LeaseBook) -> OrphanSearch:
        return OrphanSearch(
            book,
            self._attachments,
            self._clock,
            self._metrics,
            self._log,
            self._notices,
            runtime=self._find_runtime(),
            pods=self._pods.pods if self._pods is not None else None,
            waits=lambda: self._opening.waits,
        )

    def _take(self, view: View, book: LeaseBook, keeper: AllocationKeeper) -> None:
        """A View from the source (or the one kept from before): plan by it, and let everybody see it."""
        kept = self._cached
        if view.doubted and not view.networks and self._cached is not None:
            # The source shows nothing and is not believed: what was known last is served, with what it says of itself.
            view = replace(self._cached, doubted=view.doubted, problems=view.problems, warnings=view.warnings)
        elif view.synced and not view.doubted:
            self._cached = None
        before, self._view = self._view, view
        plans = self._plans()
        self._opening.expect(plans)
        self._attachments.apply(plans)
        keeper.take(view)
        if self._claims is not None:
            self._claims.take(view)
        if self._vms is not None:
            self._vms.take(view)
        self._unkept.set()
        self._opening.seen(view)
        self._look_at_room()
        if view.problems != before.problems:
            for problem in view.problems:
                self._log.error("source problem", problem=str(problem))
        # That what was kept is served until the source is read is how every start begins, and no news.
        if view.doubted != before.doubted and view is not kept:
            if view.doubted:
                self._log.warning("source doubted", reason=view.doubted)
            elif before is not kept:
                self._log.info("source in step again")

    def _plans(self) -> tuple[NetworkPlan, ...]:
        return network_plans(self._view, self._settings.node, self._offers.closed)

    def _replan(self) -> None:
        self._attachments.apply(self._plans())

    async def _upkeep(self, attachments: Attachments) -> None:
        while True:
            await self._clock.sleep(_UPKEEP)
            await attachments.upkeep()

    async def _keep_views(self, cache: ViewCache) -> None:
        while True:
            await self._unkept.wait()
            self._unkept.clear()
            try:
                await cache.keep(self._view)
            except LedgerUnavailable as error:
                self._log.warning("objects not kept", error=error.message)
                await self._clock.sleep(_RETRY)
                self._unkept.set()

    async def _serve_http(self) -> HttpServer | None:
        address = self._settings.http
        if address is None:
            return None
        http = HttpServer(http_routes(self._metrics, lambda: self.not_ready))
        try:
            host, port = await http.start(address.host, address.port)
        except OSError as error:
            raise InternalError(f"{error.strerror}; choose another with --http, or --http off") from error
        self._metrics.read("connections", lambda: ((("http",), float(http.connections)),))
        self._log.info("serving http", host=host, port=port)
        return http

    async def _until_stopped(self, server: CniServer, http: HttpServer | None) -> None:
        await self._stop.wait()
        self._notifier.stopping("finishing the requests in flight")
        ended = await server.drain(self._settings.drain_seconds)
        with contextlib.suppress(TimeoutError):  # a disk that stands still keeps nobody from ending
            async with asyncio.timeout(_TAKE_BACK):
                await self._attachments.settled()
        if http is not None:
            await http.close()
        self._log.info("stopped", cut_off=ended)
        raise _Stopped


def _listen(path: Path) -> socket.socket:
    refuse_if_answered(path)
    return bind(path)


async def _for_ever(name: str, work: Coroutine[None, None, None], stop: asyncio.Event) -> None:
    await work
    if not stop.is_set():  # a drain ends parts before it is through itself
        raise InternalError(
            f"the agent's part {name!r} ended, which it never should; the agent stops so as to be restarted"
        )


def _first(failures: BaseExceptionGroup[AllotmentError]) -> AllotmentError:
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, AllotmentError)  # noqa: S101  # `except*` chose by this type
    return found
