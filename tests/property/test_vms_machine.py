"""I1 I2 I3 I6 I7 for pods of virtual machines, over all that the machine of the attachments does (ADR 0013).

Of the five pods two run one VM and two another, so that a VM's next pod comes while the one before is there, is being
ended, or has gone. Whether addresses are kept for VMs changes meanwhile.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from allotment.addressing.errors import AllotmentError, LedgerUnavailable
from allotment.addressing.lease import Cause, LeaseKind, Owner
from property.test_attachments_machine import Machine, request

if TYPE_CHECKING:
    from allotment.cni.request import CniRequest, Verb

VMS = {"pod1": "db", "pod2": "db", "pod3": "cart", "pod4": "cart"}


class Known:
    """Knows all pods; see `allotment.node.attaching.machines.Machines`."""

    def seen(self, namespace: str, name: str, uid: str) -> str | None:
        return VMS.get(name, "") if uid else None

    async def ask(self, namespace: str, name: str, uid: str) -> str:
        return ""


class VmMachine(Machine):
    """The same node, in a cluster with VMs."""

    def request(self, verb: Verb, container: str, **fields: object) -> CniRequest:
        pod = {"pod_namespace": "shop", "pod_name": container, "pod_uid": f"uid-{container}"} if container else {}
        return request(verb, container, **pod, **fields)

    def start(self) -> None:
        if not self.calls:
            self.plan = replace(self.plan, keeps=True)
        super().start()
        self.attachments.know_machines(Known())

    def check_grant(self, attached) -> None:
        """Whom an address was kept for has it; nothing is kept any more for a machine that runs."""
        super().check_grant(attached)
        owner = attached.leases[0].owner
        assert owner.vm == VMS.get(owner.pod_name, "")
        if owner.vm:
            assert not [lease for lease in self.book.kept() if lease.owner.machine == owner.machine]
        if owner.vm and self.plan.keeps:
            theirs = {lease.owner.pod_name for lease in self.book.leases() if lease.owner.machine == owner.machine}
            assert theirs == {owner.pod_name}, "two pods of one machine"

    def others(self, pod: str) -> list[str]:
        return [other for other in VMS if VMS[other] == VMS[pod] and other != pod]

    # -- what happens to VMs

    @precondition(lambda self: not self.pending)
    @rule(keeps=st.booleans())
    def persistence_changes(self, keeps: bool) -> None:
        self.apply(replace(self.plan, keeps=keeps))

    @rule(cause=st.sampled_from([Cause.UNKEPT, Cause.OPERATOR]))
    def what_is_kept_ends(self, cause: Cause) -> None:
        """By the looks at its machine, or a person's word; on a disk that stalls it is in flight."""
        kept = self.book.kept()

        async def inside() -> None:
            async def work() -> None:
                with contextlib.suppress(LedgerUnavailable):
                    await self.attachments.remove(kept, cause, "test")

            self.spawn(work())
            await self.settle()

        self.run(inside())
        if not self.store.failing and not self.store.stalled:
            assert not set(kept) & set(self.book.leases())

    @precondition(lambda self: not self.store.stalled and not self.store.failing and not self.pending)
    @rule(pod=st.sampled_from(sorted(VMS)))
    def stop_and_start(self, pod: str) -> None:
        """The machine's other pod comes after this one's end: with the same addresses, where they are kept (I6)."""
        before = self.of_this_boot(self.book.find(("blue", pod, "eth0")))
        (other,) = self.others(pod)
        theirs = [lease for lease in self.book.leases() if lease.owner.pod_name == other]
        if not before or theirs:
            return
        addresses = {lease.address for lease in before if self.book.may_keep(lease)}
        self.delete(pod)
        assert {lease.address for lease in self.book.kept()} >= addresses
        for third in ("pod0", *(each for each in VMS if each not in (pod, other))):
            self.add(third)
        self.add(other)
        now = {lease.address for lease in self.book.find(("blue", other, "eth0"))}
        assert not now or addresses <= now, "I6: what was kept went to somebody else"
        if self.plan.refusal is None and len(addresses) == 2:
            assert now == addresses

    @precondition(lambda self: not self.store.stalled and not self.store.failing and self.plan.keeps)
    @rule(pod=st.sampled_from(sorted(VMS)))
    def an_operator_frees_a_pods_lease(self, pod: str) -> None:
        """A person's word keeps nothing."""
        leases = self.book.find(("blue", pod, "eth0"))
        self.told.pop(pod, None)
        self.ending |= {lease.sequence for lease in leases}

        async def inside() -> None:
            with contextlib.suppress(AllotmentError):
                await self.attachments.remove(leases, Cause.OPERATOR, "test")
            await self.settle()

        self.run(inside())
        addresses = {lease.address for lease in leases}
        assert not [lease for lease in self.book.kept() if lease.address in addresses]

    # -- what must always be so

    @invariant()
    def machines_have_one_address(self) -> None:
        if not hasattr(self, "book"):
            return
        kept = [(lease.owner.machine, lease.address.family) for lease in self.book.kept()]
        assert len(set(kept)) == len(kept)
        for lease in self.book.kept():
            owner = lease.owner
            assert owner == Owner("blue", owner.machine, "eth0", "shop", kind=LeaseKind.VM, vm=owner.vm)

    @invariant()
    def memory_is_what_the_disk_holds(self) -> None:
        if hasattr(self, "book") and not (self.store.stalled or self.store.failing or self.pending or self.background):
            memory, disk = self.book.snapshot().canonical(), self.store.state().canonical()
            assert memory.leases == disk.leases
            resting = [(rest.first, rest.last) for rest in memory.rests]
            assert resting == [(rest.first, rest.last) for rest in disk.rests]


VmMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestVms = VmMachine.TestCase
