"""Who says which virtual machine a pod runs, where that isn't learnt with its address (`Picker`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from allotment.addressing.lease import Owner
    from allotment.observe.clock import Clock

__all__ = ["Machines", "with_machine", "with_seen_machine"]


class Machines(Protocol):
    """Knows this node's pods, as far as they have been seen. `uid` is the pod's as the runtime names it."""

    def seen(self, namespace: str, name: str, uid: str) -> str | None:
        """The VM that the pod runs, by its name in that namespace (empty: none); None for a pod that wasn't seen."""
        ...

    async def ask(self, namespace: str, name: str, uid: str) -> str:
        """The same of a pod that wasn't seen, by asking once, and not for long; empty if that can't be told."""
        ...


async def with_machine(owner: Owner, machines: Machines | None, clock: Clock) -> Owner:
    """The owner with the virtual machine that its pod runs. Nearly always that pod was seen before its ADD comes."""
    if machines is None or not owner.pod_uid:
        return owner
    pod = (owner.pod_namespace, owner.pod_name, owner.pod_uid)
    vm = machines.seen(*pod)
    if vm is None:
        await clock.sleep(0)  # a call begins in no task (`cni.begun`), and whoever waits needs one
        vm = await machines.ask(*pod)
    return replace(owner, vm=vm) if vm else owner


def with_seen_machine(owner: Owner, machines: Machines | None) -> Owner:
    """The same of a pod that runs already, as far as it was seen."""
    if machines is None or owner.vm or not owner.pod_uid:
        return owner
    vm = machines.seen(owner.pod_namespace, owner.pod_name, owner.pod_uid)
    return replace(owner, vm=vm) if vm else owner
