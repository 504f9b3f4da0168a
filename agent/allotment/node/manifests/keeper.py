"""Brings together what the manifests say and what the state folder holds, and makes a View of it.

It blocks on the disk and is not safe for two threads: `source` calls it off the event loop, one call at a time. What
lets an address be given is written down before it is shown; what takes that away is shown even where it can't be
written, and written at the next look.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from allotment.addressing.errors import ConfigError, TryAgain
from allotment.api.allocation import Allocation
from allotment.api.ipamconfig import CONFIG_NAME, IPAMConfig
from allotment.api.names import allocation_name
from allotment.api.network import Network
from allotment.api.reservation import IPReservation
from allotment.node.manifests.folder import ManifestFolder, Reading
from allotment.node.manifests.standalone import AllocationRecord, Told, changed, settle, subnets_in_use, why_not
from allotment.node.view import FileProblem, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from allotment.addressing.address import Prefix
    from allotment.api.allocation import AllocationStatus
    from allotment.node.manifests.file import Key
    from allotment.node.manifests.folder import Served
    from allotment.node.manifests.state_folder import StateFolder
    from allotment.observe.clock import Clock

__all__ = ["ManifestKeeper"]


_RETRY = 2.0
"""Seconds until what could not be written is tried again."""


class ManifestKeeper:
    """The state of standalone mode."""

    def __init__(self, folder: Path, state: StateFolder, node: str, clock: Clock, *, grace: float) -> None:
        """Nothing is read before the first look; `grace` as in `ManifestFolder`."""
        self._path = folder
        self._state = state
        self._node = node
        self._clock = clock
        self._grace = grace
        self._folder: ManifestFolder | None = None
        self._cached: Mapping[Key, Served] = {}
        self._facts = _Facts.of(Reading({}), node)
        self._records: dict[str, AllocationRecord] = {}  # by network
        self._damaged: tuple[FileProblem, ...] = ()
        self._troubles: list[FileProblem] = []
        self._unwritten: set[str] = set()  # networks whose record on disk is not as it should be

    def look(self) -> tuple[View, float | None]:
        """Read the folder again. Gives the View, and the seconds after which to look again though nothing rings.

        Raises:
            ConfigError: at the first look: the state folder can't be used, or was written by a newer version.
        """
        folder = self._folder or self._open()
        expected = any(record.live for record in self._records.values())
        reading = folder.read(self._clock.seconds(), expected=expected, in_use=self._in_use)
        self._facts = _Facts.of(reading, self._node)
        self._troubles = []
        self._cache(reading)
        for network in sorted({*self._facts.networks, *self._facts.named, *self._records, *self._unwritten}):
            self._settle(network)
        again_in = reading.again_in
        if self._unwritten:  # the disk is full or fails: somebody may wait for what could not be written
            again_in = _RETRY if again_in is None else min(_RETRY, again_in)
        return self._view(), again_in

    def record(self, name: str, finalizers: Sequence[str] | None, status: AllocationStatus | None) -> View | None:
        """Write an Allocation's finalizers or status; None when that is refused (see `Source.record`).

        Raises:
            TryAgain: it could not be written; nothing has changed.
        """
        if self._folder is None:
            self.look()
        network = self._network_of(name)
        old = self._records.get(network)
        new = changed(old, finalizers, status) if old is not None else None
        if new is None:
            return None
        settled = settle(self._tell(network), new)
        if settled != old or network in self._unwritten:
            try:
                self._write(network, settled)
            except OSError as error:
                raise TryAgain(f"can't record Allocation {name} in the state folder: {_reason(error)}") from error
        return self._view()

    def forget(self, name: str) -> View | None:
        """Drop the finalizers of an Allocation that is being deleted; None when it isn't, or isn't there."""
        if self._folder is None:
            self.look()
        record = self._records.get(self._network_of(name))
        if record is None or record.released or not record.allocation.metadata.deleting:
            return None
        return self.record(name, (), None)

    def _open(self) -> ManifestFolder:
        try:
            records = self._state.load()
            self._cached = self._state.load_manifests()
        except OSError as error:
            raise ConfigError(f"the state folder {self._state.folder} can't be used: {_reason(error)}") from error
        for record in records.values():
            spec = record.allocation.spec
            if spec.node == self._node:
                self._records[spec.network] = record
        self._damaged = tuple(
            FileProblem(record.allocation.name, 0, f"is recorded for node {record.allocation.spec.node}; passed over")
            for record in records.values()
            if record.allocation.spec.node != self._node
        )
        self._folder = ManifestFolder(self._path, self._cached, grace=self._grace)
        return self._folder

    def _network_of(self, name: str) -> str:
        """The network of an Allocation of ours, or nothing. A name is not taken apart: the fields count."""
        return next((net for net, record in self._records.items() if record.allocation.name == name), "")

    def _in_use(self, network: str) -> frozenset[str]:
        known = self._facts.networks.get(network)
        record = self._records.get(network)
        if known is None and record is not None:
            known = record.network
        return subnets_in_use(known, record) if known is not None else frozenset()

    def _cache(self, reading: Reading) -> None:
        if reading.served == self._cached:
            return
        try:
            self._state.save_manifests(reading.served)
        except OSError as error:
            self._trouble(f"can't keep the manifests' last good state: {_reason(error)}")
        else:
            self._cached = reading.served

    def _settle(self, network: str) -> None:
        old = self._records.get(network)
        new = settle(self._tell(network), old)
        if new == old and network not in self._unwritten:
            return
        try:
            self._write(network, new)
        except OSError as error:
            self._unwritten.add(network)
            self._trouble(f"can't record the Allocation of network {network}: {_reason(error)}")
            if new is None:
                self._records.pop(network, None)
            elif new.released or new.allocation.metadata.deleting:
                self._records[network] = new

    def _write(self, network: str, record: AllocationRecord | None) -> None:
        """Put a record on disk, and only then into memory."""
        if record is None:
            self._state.drop(allocation_name(network, self._node))
            self._records.pop(network, None)
        else:
            self._state.save(record)
            self._records[network] = record
        self._unwritten.discard(network)

    def _trouble(self, message: str) -> None:
        self._troubles.append(FileProblem(str(self._state.folder), 0, message))

    def _tell(self, network: str) -> Told:
        facts = self._facts
        obstacle = facts.obstacle
        record = self._records.get(network)
        aside = self._state.set_aside(allocation_name(network, self._node)) if record is None else None
        if aside is not None and network not in facts.files:
            obstacle = (
                "what was recorded of it is damaged, so it is not known whether it may be admitted; give an "
                f"Allocation file for it, or remove {aside} to have it admitted anew"
            )
        return Told(
            name=network,
            node=self._node,
            network=facts.networks.get(network),
            file=facts.files.get(network),
            elsewhere=facts.elsewhere.get(network),
            sure=facts.reading.sure,
            obstacle=obstacle,
            now=datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            uid=str(uuid.uuid4()),
        )

    def _view(self) -> View:
        facts = self._facts
        networks = dict(facts.networks)
        allocations: dict[str, Allocation] = {}
        unadmitted: dict[str, str] = {}
        for name, record in self._records.items():
            if record.live:
                allocations[name] = record.allocation
                networks.update(_network_of(record, facts.networks.get(name)))
        for name in networks.keys() - allocations.keys():
            reason = "its Allocation can't be recorded in the state folder" if name in self._unwritten else ""
            unadmitted[name] = reason or why_not(self._tell(name), self._records.get(name))
        return View(
            networks=MappingProxyType(networks),
            allocations=MappingProxyType(allocations),
            reservations=MappingProxyType(facts.reservations),
            config=facts.config,
            unadmitted=MappingProxyType(unadmitted),
            problems=(*facts.reading.problems, *self._troubles),
            warnings=(*facts.reading.warnings, *self._damaged, *self._state.problems, *self._remarks()),
            doubted=facts.reading.doubted,
            synced=bool(facts.reading.served) or not facts.reading.doubted,
            whole=not (facts.reading.problems or self._troubles),
            local_l2=True,
        )

    def _remarks(self) -> Iterator[FileProblem]:
        """What a person may not expect."""
        facts = self._facts
        for name, network in facts.networks.items():
            file = facts.reading.served["Network", name].file
            record = self._records.get(name)
            if record is not None and record.live and record.network_gone and not network.metadata.deleting:
                message = (
                    f"Network {name} is back, but the one before it still drains here; it starts when that is over"
                )
                yield FileProblem(file, 0, message)
            if network.spec.node_selector is not None:
                message = f"Network {name}: nodeSelector is not looked at here, where nodes have no labels"
                yield FileProblem(file, 0, message)
        for name, message in _overlaps(facts.networks):
            yield FileProblem(facts.reading.served["Network", name].file, 0, message)
        for name, allocation in facts.files.items():
            file = facts.reading.served["Allocation", allocation.name].file
            known = facts.networks.get(name)
            if known is None:
                yield FileProblem(file, 0, f"Allocation {allocation.name}: there is no Network {name}")
            elif known.spec.type is not allocation.spec.type:
                message = f"is {allocation.spec.type}, but Network {name} is {known.spec.type}"
                yield FileProblem(file, 0, f"Allocation {allocation.name}: {message}")


def _overlaps(networks: Mapping[str, Network]) -> Iterator[tuple[str, str]]:
    """Networks with a subnet that overlaps one of another Network, each with a sentence for a person."""
    around: list[tuple[Prefix, str]] = []  # what the next one may lie in: prefixes nest or are apart
    for prefix, name in sorted((subnet.prefix, name) for name, net in networks.items() for subnet in net.spec.subnets):
        while around and prefix not in around[-1][0]:
            around.pop()
        if around:
            other, whose = around[-1]
            message = (
                f"Network {name}: its subnet {prefix} overlaps {other} of Network {whose}; each gives its addresses "
                "without regard to the other, so their pods must not be able to reach one another"
            )
            yield name, message
        around.append((prefix, name))


@dataclass(frozen=True, slots=True)
class _Facts:
    """A reading, sorted: this node's Allocation files in `files`, those of other nodes in `elsewhere`, by network."""

    reading: Reading
    networks: dict[str, Network]
    files: dict[str, Allocation]
    elsewhere: dict[str, Allocation]
    reservations: dict[str, IPReservation]
    config: IPAMConfig | None
    obstacle: str

    @property
    def named(self) -> set[str]:
        """The networks that Allocation files speak of."""
        return {*self.files, *self.elsewhere}

    @classmethod
    def of(cls, reading: Reading, node: str) -> _Facts:
        networks: dict[str, Network] = {}
        files: dict[str, Allocation] = {}
        elsewhere: dict[str, Allocation] = {}
        reservations: dict[str, IPReservation] = {}
        config: IPAMConfig | None = None
        for item in reading.served.values():
            match item.resource:
                case Network() as network:
                    networks[network.name] = network
                case Allocation() as allocation:
                    group = files if allocation.spec.node == node else elsewhere
                    group[allocation.spec.network] = allocation
                case IPReservation() as reservation:
                    reservations[reservation.name] = reservation
                case IPAMConfig() as found if found.name == CONFIG_NAME:
                    config = found
        return cls(reading, networks, files, elsewhere, reservations, config, _obstacle(reading))


def _obstacle(reading: Reading) -> str:
    if reading.doubted:
        return reading.doubted
    if reading.problems:
        return f"nobody is newly admitted until all files can be read ({reading.problems[0]})"
    return ""


def _network_of(record: AllocationRecord, current: Network | None) -> dict[str, Network]:
    """The Network of an Allocation; while it drains the one it is for, being deleted, as an API server shows it."""
    if not record.network_gone:
        network = current or record.network  # the latter where nothing is known of the folder
        return {network.name: network} if network is not None else {}
    network = record.network or current
    if network is None:
        return {}
    stamp = network.metadata.deletion_timestamp or record.allocation.metadata.deletion_timestamp
    metadata = msgspec.structs.replace(network.metadata, deletion_timestamp=stamp)
    return {network.name: msgspec.structs.replace(network, metadata=metadata)}


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
