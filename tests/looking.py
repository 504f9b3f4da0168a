"""A small node to look inside: real book, ledger, attachments and queries, on a clock that tests move.

`World` is used on a running loop. `Served` runs one in a thread of its own, with its socket, so that a command can
ask it as it would ask an agent.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allotment.addressing.book import LeaseBook
from allotment.addressing.lease import Cause, Moment
from allotment.api.allocation import Allocation
from allotment.api.decoding import decode
from allotment.api.ipamconfig import IPAMConfig
from allotment.api.meta import NODE_FINALIZER
from allotment.api.network import Network
from allotment.api.reservation import IPReservation
from allotment.cni.request import parse_request
from allotment.cni.server import CniServer, bind
from allotment.ledger import Ledger
from allotment.node.attaching.attachments import Attachments
from allotment.node.inquiries.queries import Queries
from allotment.node.plans import network_plans
from allotment.node.settings import Settings
from allotment.node.view import View
from allotment.node.view_cache import ViewCache
from allotment.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from allotment.addressing.lease import Lease
    from allotment.cni.exchange import Call, Reply

NODE = "node-3"
VERSION = "allotment.dev/v1alpha1"


def network(name: str = "blue", **spec: Any) -> dict[str, Any]:
    """A manifest of a Network with a v4 and a v6 subnet, or with other `spec`."""
    subnets = [{"cidr": "10.4.1.0/24", "hostPrefixLength": 24}, {"cidr": "fd00:4::/64", "hostPrefixLength": 64}]
    return {
        "apiVersion": VERSION,
        "kind": "Network",
        "metadata": {"name": name},
        "spec": {"type": "L3", "subnets": subnets, "cooldownSeconds": 30, **spec},
    }


def allocation(of: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """The Allocation that gives this node the whole of a network."""
    name = of["metadata"]["name"]
    blocks = [{"cidr": subnet["cidr"], "state": "Confirmed"} for subnet in of["spec"]["subnets"]]
    return {
        "apiVersion": VERSION,
        "kind": "Allocation",
        "metadata": {"name": f"{name}.{NODE}", "finalizers": [NODE_FINALIZER], **metadata},
        "spec": {"network": name, "node": NODE, "type": of["spec"]["type"], "blocks": blocks},
    }


def reservation(name: str, *cidrs: str) -> dict[str, Any]:
    """An IPReservation."""
    return {
        "apiVersion": VERSION,
        "kind": "IPReservation",
        "metadata": {"name": name},
        "spec": {"reservedCIDRs": list(cidrs)},
    }


def view_of(*manifests: dict[str, Any], **more: Any) -> View:
    """The View that a source would make of these."""
    networks, allocations, reservations, config = {}, {}, {}, None
    for manifest in manifests:
        decoded = decode(manifest)
        assert not decoded.problems, decoded.problems
        match decoded.resource:
            case Network() as found:
                networks[found.name] = found
            case Allocation() as found:
                allocations[found.spec.network] = found
            case IPReservation() as found:
                reservations[found.name] = found
            case IPAMConfig() as found:
                config = found
    return View(
        networks=networks,
        allocations=allocations,
        reservations=reservations,
        config=config,
        synced=True,
        **{"local_l2": True, **more},
    )


class NoSpool:
    """Stands where the daemon's spool is; the queries count the folder's entries themselves."""


class World:
    """One node."""

    def __init__(self, folder: Path, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(boot="11111111-2222-3333-4444-555555555555")
        self.settings = Settings(
            node=NODE,
            state_dir=folder / "state",
            socket=folder / "run" / "cni.sock",
            manifests=folder / "manifests",
            netns_dir=(folder / "netns",),
            cni_cache_dir=folder / "cni",
            ballast_mib=0,
        )
        for path in (self.settings.state_dir, self.settings.spool_dir, *self.settings.netns_dir):
            path.mkdir(parents=True, exist_ok=True)
        self.view = View()
        self.not_ready = ""
        self.calls = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self, *manifests: dict[str, Any], **more: Any) -> World:
        """Open the ledger, load the book, serve these manifests."""
        self.book = LeaseBook(NODE)
        self.ledger = Ledger.open(
            self.settings.state_dir,
            boot=self.clock.boot,
            snapshot=self.book.snapshot,
            clock=self.clock,
            ballast_bytes=0,
        )
        found = self.ledger.load()
        now = Moment(self.clock.boot, self.clock.seconds())
        self.book.load(found.leases, found.rests, sequence=found.sequence, now=now)
        self.attachments = Attachments(self.book, self.ledger, self.clock, spawn=self._spawn, add_wait=0.0)
        self.queries = Queries(
            book=self.book,
            ledger=self.ledger,
            view=lambda: self.view,
            attachments=self.attachments,
            spool=NoSpool(),  # type: ignore[arg-type]
            settings=self.settings,
            place=str(self.settings.manifests),
            clock=self.clock,
            not_ready=lambda: self.not_ready,
        )
        await self.see(*manifests, **more)
        self.attachments.serve()
        return self

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def see(self, *manifests: dict[str, Any], **more: Any) -> None:
        """A new View: planned by, and kept in the ledger."""
        self.view = view_of(*manifests, **more)
        self.attachments.apply(network_plans(self.view, NODE))
        await ViewCache(self.ledger, local_l2=self.view.local_l2).keep(replace(self.view, doubted=""))

    async def stop(self) -> None:
        """Close the ledger, as an agent that is stopped does."""
        await self.ledger.close()

    async def give(
        self, container: str, pod: str = "", *, of: str = "blue", ips: tuple[str, ...] = (), netns: str | None = None
    ) -> tuple[Lease, ...]:
        """ADD."""
        self.calls += 1
        env = self._env("ADD", container, pod)
        env["CNI_NETNS"] = netns if netns is not None else str(self.settings.netns_dir[0] / container)
        config: dict[str, Any] = {
            "cniVersion": "1.1.0",
            "name": f"{of}-net",
            "type": "ptp",
            "ipam": {"type": "allotment", "network": of},
        }
        if ips:
            config["runtimeConfig"] = {"ips": list(ips)}
        attached = await self.attachments.add(parse_request(env, json.dumps(config).encode()), f"call-{self.calls}")
        self.attachments.acknowledged(attached)
        return attached.leases

    async def free(self, container: str, pod: str = "", *, of: str = "blue") -> tuple[Lease, ...]:
        """DEL."""
        self.calls += 1
        config = {
            "cniVersion": "1.1.0",
            "name": f"{of}-net",
            "type": "ptp",
            "ipam": {"type": "allotment", "network": of},
        }
        request = parse_request(self._env("DEL", container, pod), json.dumps(config).encode())
        return await self.attachments.delete(request, f"call-{self.calls}", cause=Cause.DEL)

    @staticmethod
    def _env(verb: str, container: str, pod: str) -> dict[str, str]:
        namespace, _, name = pod.partition("/")
        arguments = (
            f";K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={f'uid-{name}'[:200]}" if pod else ""
        )
        return {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": f"IgnoreUnknown=1{arguments}",
        }

    async def ask(self, name: str, **arguments: Any) -> Any:
        """One question as the CLI would ask it, answered as plain data."""
        return json.loads(await self.queries.table()[name](json.dumps(arguments).encode()))


class _QueriesAlone:
    """A handler for the socket that answers the CLI and no runtime."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, call: Call) -> Reply:
        raise NotImplementedError(call)

    def acknowledged(self, call: Call) -> None:
        raise NotImplementedError(call)

    async def lost(self, call: Call, reply: Reply) -> None:
        raise NotImplementedError(call, reply)

    async def query(self, name: str, arguments: bytes) -> bytes:
        return await self._world.queries.table()[name](arguments)


class Served:
    """A `World` that listens at its socket, in a thread."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: CniServer | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do this on the world's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start(self, *manifests: dict[str, Any], **more: Any) -> None:
        """Start and listen."""
        self._thread.start()
        self.run(self._start(*manifests, **more))

    async def _start(self, *manifests: dict[str, Any], **more: Any) -> None:
        await self.world.start(*manifests, **more)
        self._server = CniServer(_QueriesAlone(self.world), bind(self.world.settings.socket), clock=self.world.clock)
        self._server.start()

    def go_away(self) -> None:
        """Stop as an agent does; the ledger stays."""
        self.run(self._stop())

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.drain(5.0)
            self._server = None
            await self.world.stop()

    def close(self) -> None:
        """End the thread."""
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def served(folder: Path, *manifests: dict[str, Any], **more: Any) -> Iterator[Served]:
    """A node that answers the CLI."""
    node = Served(World(folder))
    node.start(*manifests, **more)
    try:
        yield node
    finally:
        node.close()


def flags(world: World) -> list[str]:
    """The flags that lead a command to this node."""
    settings = world.settings
    return ["--socket", str(settings.socket), "--state-dir", str(settings.state_dir), "--node", settings.node]
