"""Claim: the request for one value of a pool, as a PersistentVolumeClaim is for a volume."""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Annotated, Literal

import msgspec

from allotment.api.meta import API_VERSION, UID, APIObject, Conditions, Name, Record, limits

__all__ = ["AllocationRef", "Claim", "ClaimPod", "ClaimSpec", "ClaimStatus", "PoolRef", "Value"]

Value = Annotated[str, limits(minLength=1, maxLength=43)]
"""A number, an address or a prefix, as text."""
Version = Literal["allotment.dev/v1alpha1"]


class PoolRef(Record, frozen=True):
    """The pool that a value comes from. A LoadBalancerClass is one to ask for a VIP."""

    kind: Literal["IndexPool", "IPAddressPool", "IPPrefixPool", "LoadBalancerClass"]
    name: Name
    api_version: Version | None = None


class ClaimPod(Record, frozen=True):
    """The sandbox that a pod's Claim is for, as the runtime named it; `uid` is the pod's in the API."""

    name: Name
    uid: UID
    container_id: Annotated[str, limits(minLength=1, maxLength=128)]
    interface: Annotated[str, limits(minLength=1, maxLength=15)]


class ClaimSpec(Record, frozen=True):
    """What is asked for; it can't be changed.

    `value` asks for one value of the pool. `node` and `pod` are there on a pod's Claim, made by the node's agent; so is
    `vm`, the virtual machine that the pod runs, by its name in the Claim's namespace.
    """

    pool_ref: PoolRef
    value: Value | None = None
    node: Name | None = None
    pod: ClaimPod | None = None
    vm: Name | None = None


class AllocationRef(Record, frozen=True):
    """The allocation object that holds the value."""

    kind: Literal["Index", "IPAddress", "IPPrefix"]
    name: Name
    api_version: Version | None = None


class ClaimStatus(Record, frozen=True):
    """What the Claim got. `value` is empty until condition `Allocated` is True.

    The condition's reasons: `Allocated`; `PoolExhausted` (the Claim is served first when a value frees);
    `PoolNotFound` (it is served when the pool appears); `ValueUnavailable` (the value asked for can't be had, the
    message says why); `PoolDraining` (the pool, or the Network it stands behind, is being deleted); `StandbyTaken` (the
    virtual machine has an active and a standby attachment already).

    `role` is what the Claim of a virtual machine's pod is to the machine's address.
    """

    value: Annotated[str, limits(maxLength=43)] = ""
    allocation_ref: AllocationRef | None = None
    role: Literal["Active", "Standby"] | None = None
    conditions: Conditions = ()


class Claim(APIObject, frozen=True):
    """The request for one value of a pool. It lives in a namespace."""

    spec: ClaimSpec
    status: ClaimStatus = ClaimStatus()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "Claim")
