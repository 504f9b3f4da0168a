"""The source of cluster mode: the API server's objects as Views, and this agent's own words to it.

Each kind comes from a Reflector, which lists and watches for ever. A View is made of the latest Snapshots of all of
them, and is `synced` once each has been read. Losing contact changes nothing that is served (I12); the View says since
when. An object that makes no sense is named as a problem, and what it said before holds on.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from allotment.addressing.address import parse_address
from allotment.addressing.errors import ConfigError, TryAgain
from allotment.api.allocation import Allocation
from allotment.api.ipamconfig import CONFIG_NAME, IPAMConfig
from allotment.api.network import Network
from allotment.api.reservation import IPReservation
from allotment.api.selecting import selects
from allotment.api.validate import validate
from allotment.kube import failures
from allotment.kube.access import find_access
from allotment.kube.client import Client
from allotment.kube.events import EventRecorder
from allotment.kube.reflector import Reflector, Snapshot
from allotment.kube.resources import ALLOCATIONS, CONFIGS, NETWORKS, PODS, RESERVATIONS, key_of
from allotment.node.claims.desk import ClaimDesk
from allotment.node.cluster_events import event_of
from allotment.node.orphans.verdicts import Pods, Unreadable
from allotment.node.own_node import OwnNode
from allotment.node.pod_uids import uids_of
from allotment.node.rebuilding.evidence import RunningPod
from allotment.node.unseen import Unseen
from allotment.node.view import FileProblem, View
from allotment.node.vms.keeper import VmKeeper
from allotment.node.vms.naming import KUBEVIRT_NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.address import Address
    from allotment.api.allocation import AllocationStatus
    from allotment.kube.objects import Pod
    from allotment.kube.resources import Resource
    from allotment.node.claims.parts import ClaimParts
    from allotment.node.notices.notice import Notice
    from allotment.node.vms.parts import VmParts
    from allotment.observe.clock import Clock

__all__ = ["CONFIRM", "ClusterSource", "connected"]

_SEEN = 10.0
"""Seconds until a write must be seen in the watch."""
CONFIRM = 5.0
"""Seconds until an API server that all at once shows nothing for this node is asked again (I15)."""

_ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of pods that keep their addresses in their status though nothing of them runs."""

T = TypeVar("T", Network, Allocation, IPReservation, IPAMConfig)


class _Kind(Generic[T]):
    """One kind: its latest Snapshot, and what of it makes sense. `selector` chooses the objects that are watched."""

    def __init__(
        self, client: Client, resource: Resource[T], clock: Clock, log: FilteringBoundLogger, selector: str = ""
    ) -> None:
        self.plural = resource.plural
        self.reflector: Reflector[T] = Reflector(client, resource, clock, field_selector=selector, log=log)
        self.snapshot: Snapshot[T] = Snapshot({}, synced=False, lost_contact=None)
        self.good: dict[str, T] = {}
        self.problems: tuple[FileProblem, ...] = ()
        self.expected = False
        """Whether there must be some: a list without any is not believed before the next one says the same (I15)."""
        self.unsure = False
        self._doubted = 0  # which list that was
        self._judged: dict[str, T] = {}

    def take(self, snapshot: Snapshot[T]) -> None:
        """A new Snapshot; only what changed is judged again."""
        self.snapshot = snapshot
        self.expected = self.expected or bool(snapshot.items)
        if not self.expected or snapshot.items or not snapshot.synced:
            self.unsure = False
        elif not self.unsure:
            self.unsure, self._doubted = True, snapshot.lists
        elif snapshot.lists > self._doubted:
            self.expected = self.unsure = False
        if not self.unsure:
            self._judge(snapshot)

    def _judge(self, snapshot: Snapshot[T]) -> None:
        wrong = {problem.file: problem for problem in self.problems}
        found: list[FileProblem] = []
        for name, item in snapshot.items.items():
            place = f"{self.plural}/{name}"
            if self._judged.get(name) is item:
                if place in wrong:
                    found.append(wrong[place])
                continue
            if faults := validate(item):
                found.append(FileProblem(place, 0, "; ".join(str(fault) for fault in faults)))
            else:
                self.good[name] = item
        for name in self.good.keys() - snapshot.items.keys():
            del self.good[name]
        if snapshot.problem and snapshot.lost_contact is None:  # of objects; what of the line, is no fault of theirs
            found.append(FileProblem(self.plural, 0, snapshot.problem))
        self._judged = dict(snapshot.items)
        self.problems = tuple(sorted(found))


async def connected(
    kubeconfig: Path | None,
    node: str,
    clock: Clock,
    log: FilteringBoundLogger,
    stack: AsyncExitStack,
    *,
    on_drop: Callable[[float], None] = lambda _: None,
    on_list: Callable[[str], None] = lambda _: None,
) -> ClusterSource:
    """The source of the cluster that `kubeconfig` names, or (None) that this process is a pod of; closed with `stack`.

    `on_drop` hears of notices that became no Event, `on_list` of each whole list that was read, by its kind's plural.

    Raises:
        ConfigError: there is no such cluster to be found; the message says what to do.
    """
    access = await find_access(kubeconfig)
    client = await stack.enter_async_context(Client(access, clock, user_agent="allotment-agent", on_list=on_list))
    return ClusterSource(client, access.server, node, clock, log, on_drop=on_drop)


class ClusterSource:
    """The `Source` that is a cluster's API server (`place`), for the node of this name.

    Nothing is published before all kinds have been read. With `run(known=True)` an answer without any Network or
    Allocation is doubted even then, and that is published.
    """

    def __init__(
        self,
        client: Client,
        place: str,
        node: str,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        on_drop: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._place = place
        self._clock = clock
        self._log = log
        self._publish: Callable[[View], None] = lambda _: None
        self._view = View()
        self._unsure = asyncio.Event()
        self._networks = _Kind(client, NETWORKS, clock, log)
        self._allocations = _Kind(client, ALLOCATIONS, clock, log, f"spec.node={node}")
        self._reservations = _Kind(client, RESERVATIONS, clock, log)
        self._configs = _Kind(client, CONFIGS, clock, log, f"metadata.name={CONFIG_NAME}")
        self._pods = Reflector(client, PODS, clock, field_selector=f"spec.nodeName={node}", log=log)
        self._unseen = Unseen()
        self._pods_now: Snapshot[Pod] = Snapshot({}, synced=False, lost_contact=None)
        self._own = OwnNode(client, node, clock, log, self._show)
        self._events = EventRecorder(client, clock, instance=node, log=log, on_drop=on_drop)

    @property
    def place(self) -> str:
        """The API server's URL."""
        return self._place

    async def run(self, publish: Callable[[View], None], *, known: bool = False) -> None:
        """Publish a View at each change; never returns."""
        self._publish = publish
        self._networks.expected = self._allocations.expected = known
        async with asyncio.TaskGroup() as group:
            group.create_task(self._networks.reflector.run(self._taker(self._networks)))
            group.create_task(self._allocations.reflector.run(self._taker(self._allocations)))
            group.create_task(self._reservations.reflector.run(self._taker(self._reservations)))
            group.create_task(self._configs.reflector.run(self._taker(self._configs)))
            group.create_task(self._pods.run(self._take_pods))
            group.create_task(self._ask_again())
            group.create_task(self._own.run())
            group.create_task(self._events.run())

    def pod(self, namespace: str, name: str) -> Pod | None:
        """One of this node's pods, as last seen."""
        return self._pods_now.items.get(key_of(namespace, name))

    def claim_desk(self, parts: ClaimParts) -> ClaimDesk:
        """Where the addresses of L2 networks are asked for."""
        return ClaimDesk(self._client, self.pod, parts, self._log)

    def vm_keeper(self, parts: VmParts) -> VmKeeper:
        """What knows the node's virtual machines, and keeps their addresses."""
        return VmKeeper(self._client, self.pod, self._may_run_vms, parts, self._log)

    def _may_run_vms(self) -> bool:
        """Whether a pod that wasn't seen may be a virtual machine's, and can be asked for."""
        labels = self._own.labels
        return (labels is None or KUBEVIRT_NODE in labels) and self._pods_now.lost_contact is None

    def pods(self) -> Pods | Unreadable:
        """The pods that are bound to this node, by UID, or why that isn't known now.

        A static pod has two: its mirror's in the API, and the hash of its file, which is what the runtime knows.
        """
        if why := self._why_no_pods():
            return Unreadable(why)
        return Pods(frozenset(uid for pod in self._pods_now.items.values() for uid in uids_of(pod)))

    def running(self) -> tuple[RunningPod, ...] | Unreadable:
        """Those of them that have not ended, and are not in the node's own network, with their addresses."""
        if why := self._why_no_pods():
            return Unreadable(why)
        return tuple(
            RunningPod(pod.metadata.namespace, pod.metadata.name, uids_of(pod), _addresses(pod))
            for pod in self._pods_now.items.values()
            if not pod.spec.host_network and pod.status.phase not in _ENDED
        )

    def _why_no_pods(self) -> str:
        now = self._pods_now
        if not now.synced:
            return "the API server has not been asked for this node's pods yet"
        if now.lost_contact is not None:
            seconds = self._clock.seconds() - now.lost_contact
            return f"the API server could not be asked for this node's pods for {seconds:.0f} s"
        return f"not all pods of this node can be read: {now.problem}" if now.problem else ""

    def tell(self, notice: Notice) -> None:
        """Have an Event made of a notice, soon."""
        told = event_of(notice, self._view, self._own.node)
        if told is not None:
            self._events.note(told.regarding, told.reason, told.message, told.type, topic=told.topic)

    async def record(
        self, seen: Allocation, *, finalizers: Sequence[str] | None = None, status: AllocationStatus | None = None
    ) -> bool:
        """See `Source.record`. Whoever changed the object meanwhile goes first: the next View shows it (TryAgain)."""
        item = seen
        try:
            if finalizers is not None:
                item = await self._client.patch_finalizers(ALLOCATIONS, item, finalizers)
                if item.metadata.deleting and not item.metadata.finalizers:
                    return True  # the last one: with it the object is gone
            if status is not None:
                item = await self._client.patch_status(ALLOCATIONS, item, status)
        except (failures.NotFound, failures.Terminating):
            return False
        except (failures.Invalid, failures.Unreadable) as error:
            # One object that is not taken must not end the agent of the others.
            raise TryAgain(error.message, error.details) from error
        try:
            async with asyncio.timeout(_SEEN):
                await self._allocations.reflector.seen(seen.name, item.metadata.resource_version)
        except TimeoutError:
            raise TryAgain(f"Allocation {seen.name} is written, but the watch does not show it") from None
        return True

    async def forget(self, seen: Allocation) -> None:
        """See `Source.forget`. In a cluster the rest is the controller's: its guard goes last, by its own hand (I9)."""

    # -- inside ---------------------------------------------------------------------------------------------------

    def _take_pods(self, snapshot: Snapshot[Pod]) -> None:
        self._pods_now = snapshot

    def _taker(self, kind: _Kind[T]) -> Callable[[Snapshot[T]], None]:
        def take(snapshot: Snapshot[T]) -> None:
            doubted = kind.unsure
            kind.take(snapshot)
            if kind.unsure:
                self._unsure.set()
            elif doubted and not snapshot.items:
                self._log.warning("none are left", kind=kind.plural)
            self._show()

        return take

    def _show(self) -> None:
        kinds = (self._networks, self._allocations, self._reservations, self._configs)
        doubted = " and ".join(kind.plural for kind in (self._networks, self._allocations) if kind.unsure)
        if doubted:
            doubted = f"the API server shows no {doubted} any more, and is asked again before that counts"
        lost = [kind.snapshot.lost_contact for kind in kinds if kind.snapshot.lost_contact is not None]
        if not all(kind.snapshot.synced for kind in kinds) or (doubted and not self._view.synced):
            view = View(doubted=doubted)
        else:
            networks = MappingProxyType(dict(self._networks.good))
            allocations = {item.spec.network: item for item in self._allocations.good.values()}
            view = View(
                networks=networks,
                allocations=MappingProxyType(allocations),
                reservations=MappingProxyType(dict(self._reservations.good)),
                config=self._configs.good.get(CONFIG_NAME),
                unadmitted=MappingProxyType(
                    {name: self._why_not(network) for name, network in networks.items() if name not in allocations}
                ),
                unselected=self._unselected(networks),
                pod_limit=self._own.pod_limit,
                unseen=MappingProxyType(self._not_seen(allocations)),
                problems=tuple(problem for kind in kinds for problem in kind.problems),
                warnings=tuple(
                    FileProblem(kind.plural, 0, kind.snapshot.problem)
                    for kind in kinds
                    if kind.snapshot.lost_contact is not None
                ),
                doubted=doubted,
                synced=True,
                controlled=True,
                lost_contact=min(lost) if lost else None,
            )
        before, self._view = self._view, view
        if view != before:
            self._publish(view)

    def _not_seen(self, allocations: Mapping[str, Allocation]) -> dict[str, str]:
        known = self._networks
        wrong = (known.snapshot.unread | known.snapshot.items.keys()) - known.good.keys()
        return self._unseen.judge(allocations, known.good, wrong, known.snapshot.lists, known.reflector.relist)

    def _unselected(self, networks: Mapping[str, Network]) -> frozenset[str]:
        labels = self._own.labels
        if labels is None:
            return frozenset()
        return frozenset(name for name, each in networks.items() if not selects(each.spec.node_selector, labels))

    def _why_not(self, network: Network) -> str:
        if network.metadata.deleting:
            return f"Network {network.name} is being deleted"
        labels = self._own.labels
        if labels is not None and not selects(network.spec.node_selector, labels):
            return f"the nodeSelector of Network {network.name} leaves this node out; change it, or the node's labels"
        return (
            f"the controller has not made an Allocation for it; see that it runs, and whether the nodeSelector of "
            f"Network {network.name} selects this node"
        )

    async def _ask_again(self) -> None:
        """Have read once more, a while later, what is not believed to be gone."""
        while True:
            await self._unsure.wait()
            self._unsure.clear()
            await self._clock.sleep(CONFIRM)
            for kind in (self._networks, self._allocations):
                if kind.unsure:
                    kind.reflector.relist()


def _addresses(pod: Pod) -> tuple[Address, ...]:
    found = []
    for entry in pod.status.pod_ips:
        with contextlib.suppress(ConfigError):
            found.append(parse_address(entry.ip))
    return tuple(found)
