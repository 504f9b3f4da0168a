"""What a pod's Claim looks like, and what one that is there means: pure functions (ADR 0011)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from allotment.addressing.address import Address, parse_address
from allotment.addressing.errors import AddressUnavailable, AllotmentError, ConfigError, Exhausted, NetworkDraining
from allotment.api.claim import Claim, ClaimPod, ClaimSpec, PoolRef
from allotment.api.meta import LEDGER_ANNOTATION, NODE_FINALIZER, ObjectMeta
from allotment.api.names import claim_name, pool_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from allotment.addressing.address import Family
    from allotment.addressing.lease import Lease, Owner
    from allotment.api.meta import OwnerReference

__all__ = ["ClaimKey", "Fit", "claim_for", "fit", "held", "key_of_claim", "key_of_lease", "verdict"]

ClaimKey = tuple[str, str, str]
"""(pool, container ID, interface): what a pod's Claim is for; an attachment has one of each family."""

_KIND: Final = "IPAddressPool"


def key_of_lease(lease: Lease) -> ClaimKey:
    """What the Claim behind a lease is for."""
    owner = lease.owner
    return (pool_name(owner.network, lease.address.family), owner.container_id, owner.interface)


def key_of_claim(claim: Claim) -> ClaimKey | None:
    """What a Claim is for; None if it is no pod's."""
    pod, pool = claim.spec.pod, claim.spec.pool_ref
    return None if pod is None or pool.kind != _KIND else (pool.name, pod.container_id, pod.interface)


def held(claim: Claim) -> bool:
    """Whether our finalizer keeps it."""
    return NODE_FINALIZER in claim.metadata.finalizers


def claim_for(
    owner: Owner, family: Family, address: Address | None, *, node: str, ledger_id: str, pod: OwnerReference | None
) -> Claim:
    """The Claim by which an attachment asks for an address, or for this very one. `pod` is its owner in the API.

    Raises:
        ConfigError: the call didn't say which pod it is for.
    """
    if not owner.pod_name or not owner.pod_namespace:
        raise ConfigError(
            f"network {owner.network} gives addresses by Claim, which lives in the pod's namespace, and this call "
            "names no pod (CNI_ARGS K8S_POD_NAMESPACE, K8S_POD_NAME); use an L3 network for containers without one"
        )
    pool = pool_name(owner.network, family)
    return Claim(
        metadata=ObjectMeta(
            name=claim_name(owner.pod_name, pool, owner.container_id, owner.interface),
            namespace=owner.pod_namespace,
            finalizers=(NODE_FINALIZER,),
            annotations={LEDGER_ANNOTATION: ledger_id},
            owner_references=() if pod is None else (pod,),
        ),
        spec=ClaimSpec(
            pool_ref=PoolRef(kind=_KIND, name=pool),
            value=None if address is None else str(address),
            node=node,
            pod=ClaimPod(
                name=owner.pod_name,
                uid="" if pod is None else pod.uid,
                container_id=owner.container_id,
                interface=owner.interface,
            ),
            vm=owner.vm or None,
        ),
    )


class Fit(enum.Enum):
    """What a Claim that has the wanted one's name is to it."""

    OURS = "the same: an earlier try made it"
    PAST = "of the same attachment, but it can't be used: it is to be let go first"
    FOREIGN = "for something else"


def fit(found: Claim, wanted: Claim) -> Fit:
    """Whether `found`, of the same name, is what an earlier try made of `wanted`.

    Who owns it doesn't matter: a mirror pod may have appeared since. One that is being deleted is never used: a write
    of ours that lets it go may still be on its way.
    """
    if key_of_claim(found) != key_of_claim(wanted) or found.spec.node != wanted.spec.node:
        return Fit.FOREIGN
    asked = (found.spec.value, found.spec.vm) == (wanted.spec.value, wanted.spec.vm)
    usable = held(found) and not found.metadata.deleting and asked
    return Fit.OURS if usable else Fit.PAST


def verdict(claim: Claim, network: str, node: str) -> Address | str:
    """What became of a Claim: its address, or why there is none yet.

    Raises:
        Exhausted, AddressUnavailable, NetworkDraining: the controller's refusal, in its words.
        ConfigError: it is being deleted and will get none.
    """
    if claim.status.value and claim.status.allocation_ref is not None and held(claim):
        return parse_address(claim.status.value)
    name = f"Claim {claim.metadata.namespace}/{claim.name}"
    if claim.metadata.deleting:
        raise ConfigError(f"{name} is being deleted, with its pod or namespace, and gets no address any more")
    condition = next((each for each in claim.status.conditions if each.type == "Allocated"), None)
    if condition is None or condition.status != "False":
        return f"{name} waits for the controller; see that it runs"
    error = _REFUSALS.get(condition.reason)
    said = condition.message or condition.reason
    if error is None:
        return f"{name}: {said}"
    if error is Exhausted:
        raise Exhausted(f"no IP addresses available in network {network} on {node}: {said}")
    raise error(f"network {network} gives no address on {node}: {said}")


_REFUSALS: Mapping[str, type[AllotmentError]] = {
    "PoolExhausted": Exhausted,
    "ValueUnavailable": AddressUnavailable,
    "PoolDraining": NetworkDraining,
}
