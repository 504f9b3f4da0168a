"""The controller's part in a pod's Claim (ADR 0011, 0013), as a double with switches: it binds Claims to IPAddresses.

    async with Client(access, clock) as client:
        controller = ClaimController(client, clock)
        task = asyncio.create_task(controller.run())

`InThread` runs one beside a test that doesn't use asyncio.
"""

import asyncio
import contextlib
import threading

import structlog
from msgspec.structs import replace

from allotment.addressing.address import Address, parse_address
from allotment.addressing.edges import unusable
from allotment.addressing.intervals import IntervalSet
from allotment.api.claim import AllocationRef, ClaimStatus
from allotment.api.meta import HELD_FINALIZER, Condition, ObjectMeta
from allotment.api.names import address_name, pool_name
from allotment.api.numbered import ClaimRef, IPAddress, IPAddressSpec, VMRef
from allotment.kube.client import Client
from allotment.kube.failures import AlreadyExists, ApiFailure, Conflict, NotFound
from allotment.kube.reflector import Reflector
from allotment.kube.resources import ADDRESSES, CLAIMS, NETWORKS
from cluster.fabric import enter

_STAMP = "2026-01-01T00:00:00Z"


class ClaimController:
    """Binds each Claim of a network's pool to the lowest address that is free, and frees what is let go.

    Switches: `idle` does nothing at all; `exhausted` is what every Claim is told (empty: nothing); `draining` likewise;
    `dies_half_way` makes the IPAddress and never comes to the status. `vms` are the virtual machines that exist, as
    (namespace, name); `persistence` is that of the IPAMConfig.
    """

    def __init__(self, client, clock):
        self._client = client
        self._clock = clock
        self._wake = asyncio.Event()
        self._claims = {}
        self.idle = False
        self.exhausted = ""
        self.draining = ""
        self.dies_half_way = False
        self.vms = frozenset()
        self.persistence = True
        self.problems = []

    def set(self, **switches):
        """Turn switches; what waits is looked at again."""
        for name, value in switches.items():
            setattr(self, name, value)
        self._wake.set()

    async def run(self):
        reflector = Reflector(self._client, CLAIMS, self._clock, log=structlog.get_logger())
        async with asyncio.TaskGroup() as group:
            group.create_task(reflector.run(self._take))
            group.create_task(self._work())

    def _take(self, snapshot):
        self._claims = snapshot.items
        self._wake.set()

    async def _work(self):
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.idle:
                continue
            try:
                for claim in list(self._claims.values()):
                    await self._bind(claim)
                await self._release()
                await self._say_roles()
            except ApiFailure as failure:
                self.problems.append(failure.message)
                asyncio.get_running_loop().call_later(0.2, self._wake.set)

    async def _network(self, claim):
        for network in (await self._client.list(NETWORKS)).items:
            for subnet in network.spec.subnets:
                if pool_name(network.name, subnet.prefix.family) == claim.spec.pool_ref.name:
                    return network, [
                        each for each in network.spec.subnets if each.prefix.family is subnet.prefix.family
                    ]
        return None, []

    async def _bind(self, claim):
        if claim.status.value or claim.metadata.deleting:
            return
        network, subnets = await self._network(claim)
        if network is None:
            return
        if self.exhausted or self.draining:
            reason = "PoolExhausted" if self.exhausted else "PoolDraining"
            await self._refuse(claim, reason, self.exhausted or self.draining)
            return
        found = await self._held_by(claim)
        if found is None and claim.spec.vm:
            found, refused = await self._join(claim)
            if refused:
                return
        found = found or await self._make(claim, network, subnets)
        if found is None or self.dies_half_way:
            return
        live = await self._client.get(NETWORKS, network.name)
        if live.metadata.deleting:
            await self._refuse(claim, "PoolDraining", f"Network {network.name} is being deleted")
            return
        status = ClaimStatus(
            value=found.spec.address,
            allocation_ref=AllocationRef(kind="IPAddress", name=found.name),
            role=_role(found, claim),
            conditions=(Condition("Allocated", "True", "Allocated", "", _STAMP),),
        )
        with contextlib.suppress(Conflict, NotFound):
            await self._client.patch_status(CLAIMS, claim, status)

    async def _refuse(self, claim, reason, message):
        conditions = (Condition("Allocated", "False", reason, message, _STAMP),)
        if claim.status.conditions != conditions:
            with contextlib.suppress(Conflict, NotFound):
                await self._client.patch_status(CLAIMS, claim, ClaimStatus(conditions=conditions))

    async def _held_by(self, claim):
        for held in (await self._client.list(ADDRESSES)).items:
            if claim.metadata.uid in _holders(held):
                return held
        return None

    async def _join(self, claim):
        """A place at the address that the Claim's VM has already, None where it has none; and whether it is refused."""
        pool, vm = claim.spec.pool_ref.name, _vm_ref(claim)
        of_vm = [held for held in (await self._client.list(ADDRESSES)).items if held.spec.vm == vm]
        of_vm = [held for held in of_vm if _network_of(held.spec.pool_ref.name) == _network_of(pool)]
        if any(self._full(held, claim) for held in of_vm):
            text = f"virtual machine {vm.namespace}/{vm.name} has an active and a standby attachment already"
            await self._refuse(claim, "StandbyTaken", text)
            return None, True
        mine = next((held for held in of_vm if held.spec.pool_ref.name == pool), None)
        if mine is None:
            return None, False
        if claim.spec.value not in {None, mine.spec.address}:
            if mine.spec.claim_ref is None:
                await self._free(mine)
                return None, False
            text = f"virtual machine {vm.namespace}/{vm.name} holds {mine.spec.address}"
            await self._refuse(claim, "ValueUnavailable", text)
            return None, True
        field = "claimRef" if mine.spec.claim_ref is None else "standbyRef"
        return await self._point(mine, **{field: _ref(claim)}), False

    def _full(self, held, claim):
        """Whether two other attachments have both places: in the other family, too, none is left for this one then."""
        holders = _holders(held)
        theirs = [each.spec.pod for each in self._claims.values() if each.metadata.uid in holders]
        sandbox = (claim.spec.pod.container_id, claim.spec.pod.interface)
        return len(holders) == 2 and sandbox not in {(pod.container_id, pod.interface) for pod in theirs}

    async def _point(self, held, **refs):
        return await self._client.patch(ADDRESSES, held, {"spec": refs})

    async def _make(self, claim, network, subnets):
        for address in self._candidates(claim, subnets):
            with contextlib.suppress(AlreadyExists):
                return await self._client.create(ADDRESSES, self._address(claim, network, address))
        if claim.spec.value:
            await self._refuse(claim, "ValueUnavailable", f"{claim.spec.value} is held by another Claim")
        else:
            await self._refuse(claim, "PoolExhausted", f"pool {claim.spec.pool_ref.name} is exhausted")
        return None

    def _candidates(self, claim, subnets):
        if claim.spec.value:
            yield parse_address(claim.spec.value)
            return
        for subnet in subnets:
            taken = unusable(subnet.prefix) | IntervalSet.of(*subnet.excluded)
            for number in range(subnet.prefix.value, subnet.prefix.last.value + 1):
                address = Address(subnet.prefix.family, number)
                if address not in taken and address != subnet.gateway_address:
                    yield address

    def _address(self, claim, network, address):
        return IPAddress(
            metadata=ObjectMeta(name=address_name(claim.spec.pool_ref.name, address), finalizers=(HELD_FINALIZER,)),
            spec=IPAddressSpec(
                pool_ref=claim.spec.pool_ref,
                claim_ref=ClaimRef(claim.name, namespace=claim.metadata.namespace, uid=claim.metadata.uid),
                network_uid=network.metadata.uid,
                address=str(address),
                handle=_handle(network, claim),
                vm=_vm_ref(claim),
            ),
        )

    async def _release(self):
        for held in (await self._client.list(ADDRESSES)).items:
            spec = held.spec
            with contextlib.suppress(NotFound):
                if spec.standby_ref is not None and await self._is_gone(spec.standby_ref):
                    await self._point(held, standbyRef=None)
                elif spec.claim_ref is None:
                    if spec.vm is not None and not await self._keeps(held):
                        await self._free(held)
                elif not await self._is_gone(spec.claim_ref):
                    continue
                elif spec.standby_ref is not None:  # one write: the address is never free in between
                    await self._point(held, claimRef=spec.standby_ref, standbyRef=None)
                elif spec.vm is not None and await self._keeps(held):
                    await self._point(held, claimRef=None)
                else:
                    await self._free(held)

    async def _is_gone(self, ref):
        if any(claim.metadata.uid == ref.uid for claim in self._claims.values()):
            return False
        try:
            return (await self._client.get(CLAIMS, ref.name, namespace=ref.home)).metadata.uid != ref.uid
        except NotFound:
            return True

    async def _keeps(self, held):
        """Whether an address that nobody holds is kept for its VM."""
        networks = (await self._client.list(NETWORKS)).items
        there = any(each.metadata.uid == held.spec.network_uid and not each.metadata.deleting for each in networks)
        return there and self.persistence and (held.spec.vm.namespace, held.spec.vm.name) in self.vms

    async def _free(self, held):
        await self._client.delete(ADDRESSES, held)
        fresh = await self._client.get(ADDRESSES, held.name)
        await self._client.patch_finalizers(ADDRESSES, fresh, ())
        self._wake.set()  # somebody may have waited for it

    async def _say_roles(self):
        for held in (await self._client.list(ADDRESSES)).items:
            for claim in self._claims.values():
                role = _role(held, claim)
                if role and claim.status.value and claim.status.role != role:
                    with contextlib.suppress(Conflict, NotFound):
                        await self._client.patch_status(CLAIMS, claim, replace(claim.status, role=role))


def _network_of(pool):
    return pool.rpartition(".v")[0]


def _vm_ref(claim):
    if not claim.spec.vm:
        return None
    return VMRef(namespace=claim.metadata.namespace, name=claim.spec.vm, interface=claim.spec.pod.interface)


def _handle(network, claim):
    if claim.spec.vm:
        return f"{network.name}.{claim.metadata.namespace}-{claim.spec.vm}"
    return f"{network.name}.{claim.spec.pod.container_id}" if claim.spec.pod else ""


def _ref(claim):
    return {"kind": "Claim", "name": claim.name, "namespace": claim.metadata.namespace, "uid": claim.metadata.uid}


def _holders(held):
    return [ref.uid for ref in (held.spec.claim_ref, held.spec.standby_ref) if ref is not None]


def _role(held, claim):
    """What the Claim is to the address of its VM; None to any other."""
    if held.spec.vm is None or claim.metadata.uid not in _holders(held):
        return None
    active = held.spec.claim_ref is not None and held.spec.claim_ref.uid == claim.metadata.uid
    return "Active" if active else "Standby"


class InThread:
    """A ClaimController in a thread of its own, of the API server that `access` leads to; a context manager.

    `netns` is the network namespace in which it works, a path; this process's own if None.
    """

    def __init__(self, access, clock, *, netns=None):
        self._access = access
        self._clock = clock
        self._netns = netns
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def set(self, **switches):
        """Turn switches of the controller."""
        self._loop.call_soon_threadsafe(lambda: self.controller.set(**switches))

    def _work(self):
        if self._netns is not None:
            enter(self._netns)
        asyncio.run(self._run())

    async def _run(self):
        self._loop = asyncio.get_running_loop()
        async with Client(self._access, self._clock) as client:
            self.controller = ClaimController(client, self._clock)
            self._task = asyncio.create_task(self.controller.run())
            self._started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._clock.sleep(0.1)  # TLS connections say goodbye
