"""What is asked of the API server about this node's Claims, one function for each thing that is done to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment.api.meta import LEDGER_ANNOTATION, NODE_FINALIZER, OwnerReference
from allotment.kube.failures import AlreadyExists, NotFound
from allotment.kube.resources import CLAIMS, PODS
from allotment.node.pod_uids import is_meant
from allotment.node.vms.naming import vm_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.api.claim import Claim
    from allotment.kube.client import Client
    from allotment.kube.objects import Pod

__all__ = ["ClaimCalls"]


class ClaimCalls:
    """The calls. `pod` looks for one of this node's pods in what the watch has shown so far.

    All of them raise what `allotment.kube.failures` has; that something is gone already is no failure.
    """

    def __init__(self, client: Client, pod: Callable[[str, str], Pod | None]) -> None:
        self._client = client
        self._pod = pod

    async def owner(self, namespace: str, name: str, uid: str) -> tuple[OwnerReference | None, str]:
        """The pod that the runtime's UID means, as an owner, and the VM that it runs (empty: none).

        None if the API has no such pod.

        A static pod's mirror is known by the hash that is its UID in the runtime. A pod of the same name with another
        UID is another pod: what it owned would be collected at once, or with the wrong pod.
        """
        pod = self._pod(namespace, name)
        if pod is None or not is_meant(pod, uid):
            try:
                pod = await self._client.get(PODS, name, namespace=namespace)
            except NotFound:
                return None, ""
        if not is_meant(pod, uid):
            return None, ""
        owner = OwnerReference(kind=PODS.kind, name=name, uid=pod.metadata.uid, api_version=PODS.api_version)
        return owner, vm_of(pod)

    async def create(self, claim: Claim) -> Claim | None:
        """Make it; None if there is one of its name, perhaps by an earlier try."""
        try:
            return await self._client.create(CLAIMS, claim)
        except AlreadyExists:
            return None

    async def read(self, claim: Claim) -> Claim | None:
        """The Claim of this one's name as it is now."""
        try:
            return await self._client.get(CLAIMS, claim.name, namespace=claim.metadata.namespace)
        except NotFound:
            return None

    async def delete(self, claim: Claim) -> None:
        """Have it deleted; our finalizer keeps it."""
        try:
            await self._client.delete(CLAIMS, claim)
        except NotFound:
            return

    async def let_go(self, claim: Claim) -> None:
        """Take our finalizer off one that is being deleted: the address is nobody's here any more."""
        rest = [entry for entry in claim.metadata.finalizers if entry != NODE_FINALIZER]
        try:
            await self._client.patch_finalizers(CLAIMS, claim, rest)
        except NotFound:
            return

    async def stamp(self, claim: Claim, ledger_id: str) -> None:
        """Say which ledger has its lease now."""
        try:
            await self._client.patch(CLAIMS, claim, {"metadata": {"annotations": {LEDGER_ANNOTATION: ledger_id}}})
        except NotFound:
            return
