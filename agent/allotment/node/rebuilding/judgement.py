"""Which leases there must be, judged from what those say who saw the pods. Pure: evidence in, claims out.

What any of them shows keeps its address, for a lease that is forgotten would be given to somebody else (I1, I8). Each
is believed for what only he knows:

- A network namespace shows which addresses are really in use, and on which interface. It is believed before all who
  only tell: where it has an address of that family in that network, it has no other one, whatever was told.
- The runtime tells whose sandbox a namespace is. One that isn't ready counts for as long as its namespace is there.
- libcni's cache tells the network, and under which name it was asked for. An entry whose namespace is gone is out of
  date, unless the runtime has its sandbox running.
- The API server tells which pod an address is whose, where nobody else can; and of pods that nobody else knows.

An address of which only its namespace is known has an owner named after that, until a DEL for it comes. One of a pod
of which only the API server knows has an owner named after the pod's UID: it ends when that pod's DEL comes, or the
search for orphans finds the pod gone.

Two that use one address are a conflict: the lease is the first one's, so that nobody else is given it, and nothing is
done to either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allotment.addressing.book import Claimed
from allotment.addressing.lease import Owner
from allotment.node.attaching.nameless import UNKNOWN_OWNER
from allotment.node.orphans.adoption import POD_INTERFACE, Conflict, user_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from allotment.addressing.address import Address
    from allotment.addressing.plan import NetworkPlan
    from allotment.cri.messages import Sandbox
    from allotment.node.namespaces import SeenNamespace
    from allotment.node.rebuilding.evidence import CachedAttachment, Evidence, RunningPod

__all__ = ["UNSEEN_SANDBOX", "Rebuilt", "judge"]

UNSEEN_SANDBOX = "pod-"
"""A container ID that starts so was made from a pod's UID: nobody but the API server knows of its sandbox."""
_UNDATED = 1 << 63


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Who has which address, and what a person should know about how sure that is.

    `unplaced` are addresses in use that lie in no block known so far: another's, or of a network not heard of yet.
    With each stands the network that it was given in; None where nobody tells.
    """

    claims: tuple[Claimed, ...] = ()
    remarks: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    unplaced: frozenset[tuple[str | None, Address]] = frozenset()

    def can_place(self, plans: Iterable[NetworkPlan]) -> bool:
        """Whether by these plans one of the unplaced addresses lies in a block."""
        return bool(self.unplaced) and any(
            name in (None, plan.name) and any(address in block.prefix for block in plan.blocks)
            for plan in plans
            for name, address in self.unplaced
        )

    def late(self, later: Rebuilt) -> tuple[Claimed, ...]:
        """The claims of a later rebuild that concern what was unplaced in this one."""
        return tuple(
            claim
            for claim in later.claims
            if not self.unplaced.isdisjoint({(None, claim.address), (claim.owner.network, claim.address)})
        )


def judge(plans: Iterable[NetworkPlan], evidence: Evidence) -> Rebuilt:
    """The leases that these networks must have."""
    bench = _Bench(plans)
    seen = {path: namespace for namespace in evidence.namespaces for path in namespace.paths}
    # CRI-O keeps the node's own namespace mounted for pods in it; what is configured there is no pod's.
    occupied = {seen[sandbox.netns] for sandbox in evidence.sandboxes if sandbox.host_network and sandbox.netns in seen}
    for occupant in _occupants(evidence, seen):
        bench.hear(occupant)
        if occupant.namespace is not None:
            occupied.add(occupant.namespace)
    for namespace in evidence.namespaces:
        if namespace not in occupied:
            bench.hear_nameless(namespace, evidence.pods)
    known = {sandbox.uid for sandbox in evidence.sandboxes}
    for pod in evidence.pods:
        if known.isdisjoint(pod.uids):
            bench.hear_unseen(pod)
    return bench.verdict()


# -- who is in which namespace -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Occupant:
    """A container, and all that is told of it. `namespace` is its own, if that can be looked into."""

    container: str
    netns: str = ""
    namespace: SeenNamespace | None = None
    sandbox: Sandbox | None = None
    cached: list[CachedAttachment] = field(default_factory=list)

    @property
    def pod(self) -> tuple[str, str, str]:
        """Namespace, name and UID; empty where nobody knows them."""
        if self.sandbox is not None:
            return self.sandbox.namespace, self.sandbox.name, self.sandbox.uid
        owner = self.cached[0].owner
        return owner.pod_namespace, owner.pod_name, owner.pod_uid

    def owner(self, network: str, interface: str) -> Owner:
        for attachment in self.cached:
            if (attachment.owner.network, attachment.owner.interface) == (network, interface):
                return attachment.owner
        return Owner(network, self.container, interface, *self.pod)

    @property
    def told(self) -> tuple[Address, ...]:
        """The addresses that the runtime tells of."""
        return () if self.sandbox is None else self.sandbox.ips

    @property
    def created(self) -> int:
        return _UNDATED if self.sandbox is None else self.sandbox.created_ns


def _occupants(evidence: Evidence, seen: dict[str, SeenNamespace]) -> Iterable[_Occupant]:
    """The containers that may have addresses."""
    found: dict[str, _Occupant] = {}
    for sandbox in evidence.sandboxes:
        namespace = seen.get(sandbox.netns)
        if not sandbox.host_network and (sandbox.ready or namespace is not None):
            found[sandbox.id] = _Occupant(sandbox.id, sandbox.netns, namespace, sandbox)
    for attachment in evidence.cached:
        container = attachment.owner.container_id
        if attachment.netns in evidence.gone and container not in found:
            continue
        occupant = found.setdefault(container, _Occupant(container))
        occupant.cached.append(attachment)
        if occupant.namespace is None and attachment.netns in seen:
            occupant.netns, occupant.namespace = attachment.netns, seen[attachment.netns]
        occupant.netns = occupant.netns or attachment.netns
    return found.values()


# -- what follows ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Use:
    """Somebody has an address: `real` in his namespace, and `told` by somebody else to have it, or one of the two."""

    owner: Owner
    address: Address
    netns: str
    real: bool
    told: bool
    created: int = _UNDATED

    @property
    def standing(self) -> tuple[bool, bool, bool, int, str]:
        """Of several, the first by this order has the lease."""
        made_up = self.owner.container_id.startswith((UNKNOWN_OWNER, UNSEEN_SANDBOX))
        return not self.real, not self.told, made_up, self.created, self.owner.container_id


class _Bench:
    """Gathers who uses what, in the networks of these plans."""

    def __init__(self, plans: Iterable[NetworkPlan]) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._uses: dict[tuple[str, Address], dict[str, _Use]] = {}
        self._remarks: list[str] = []
        self._unplaced: set[tuple[str | None, Address]] = set()

    def hear(self, occupant: _Occupant) -> None:
        """One container: what its namespace shows, then what is told beyond that."""
        real = () if occupant.namespace is None else occupant.namespace.addresses
        in_cache = {address for attachment in occupant.cached for address in attachment.addresses}
        for address, interface in real:
            told = address in occupant.told or address in in_cache
            for owner in self._owners(occupant, address, interface):
                self._use(_Use(owner, address, occupant.netns, real=True, told=told, created=occupant.created))
        shown = dict(real)
        for attachment in occupant.cached:
            for address in attachment.addresses:
                if address not in shown:
                    self._told(occupant, attachment.owner, address, shown, "libcni's cache")
        for address in occupant.told:
            if address not in shown and address not in in_cache:
                networks = self._networks_of(address)
                if not networks:
                    self._unplaced.add((None, address))
                for network in networks:
                    owner = occupant.owner(network, POD_INTERFACE)
                    self._told(occupant, owner, address, shown, "the runtime")

    def hear_nameless(self, namespace: SeenNamespace, pods: Sequence[RunningPod]) -> None:
        """A namespace that no container is known of."""
        netns = min(namespace.paths)
        for address, interface in namespace.addresses:
            networks = self._networks_of(address)
            if not networks:
                self._unplaced.add((None, address))
                continue
            pod = _only(pod for pod in pods if address in pod.addresses)
            container = UNKNOWN_OWNER + netns.rsplit("/", 1)[-1]
            names = () if pod is None else (pod.namespace, pod.name, min(pod.uids, default=""))
            for network in self._ours_to_hold(networks):
                self._use(_Use(Owner(network, container, interface, *names), address, netns, real=True, told=False))
            self._remarks.append(f"{address} is in use on {interface} in {netns}, by a container that nobody names")

    def hear_unseen(self, pod: RunningPod) -> None:
        """A pod of which neither the runtime knows a sandbox, nor anybody else."""
        uid = min(pod.uids, default="")
        for address in pod.addresses:
            networks = self._networks_of(address)
            if not networks:
                self._unplaced.add((None, address))
            for network in self._ours_to_hold(networks):
                if uid and (network, address) not in self._uses:
                    owner = Owner(network, UNSEEN_SANDBOX + uid, POD_INTERFACE, pod.namespace, pod.name, uid)
                    self._use(_Use(owner, address, "", real=False, told=True))
                    self._remarks.append(
                        f"the API server says that pod {pod.namespace}/{pod.name} has {address}, and nobody else "
                        "knows of it: held until that pod is found gone"
                    )

    def verdict(self) -> Rebuilt:
        claims: list[Claimed] = []
        conflicts: list[Conflict] = []
        for (network, address), users in sorted(self._uses.items()):
            first, *others = sorted(users.values(), key=lambda use: use.standing)
            claims.append(Claimed(first.owner, address, first.netns))
            rivals = [other for other in others if other.real is first.real]
            for other in others:
                self._remarks.append(
                    f"{address} is used by containers {first.owner.container_id} and {other.owner.container_id}: a "
                    "conflict, left alone; delete one of the pods"
                    if other in rivals
                    else f"{address} is told to be container {other.owner.container_id}'s, but it is in the network "
                    f"namespace of {first.owner.container_id}, whose it is"
                )
            if rivals:
                rivalry = sorted(user_of(use.owner) for use in (first, *rivals))
                conflicts.append(Conflict(network, address, tuple(rivalry)))
        return Rebuilt(tuple(claims), tuple(self._remarks), tuple(conflicts), frozenset(self._unplaced))

    # -- within

    def _owners(self, occupant: _Occupant, address: Address, interface: str) -> Iterator[Owner]:
        """Who has an address that is really there: by the cache, which knows the network, or by whose block it is."""
        remembered = [attachment.owner for attachment in occupant.cached if address in attachment.addresses]
        if remembered:
            for owner in remembered:
                if self._has(owner.network, address):
                    yield owner
                else:
                    self._unplaced.add((owner.network, address))
            return
        networks = self._networks_of(address)
        if not networks:
            self._unplaced.add((None, address))
        for network in networks:
            yield occupant.owner(network, interface)

    def _told(self, occupant: _Occupant, owner: Owner, address: Address, shown: Mapping[Address, str], by: str) -> None:
        """An address that its namespace doesn't show, or that can't be looked for there."""
        network = owner.network
        if not self._has(network, address):
            self._unplaced.add((network, address))
            return
        instead = [
            other
            for other, interface in shown.items()
            if other.family is address.family and interface == owner.interface and self._has(network, other)
        ]
        if instead:
            self._remarks.append(
                f"{by} says that container {occupant.container} has {address} in network {network}, but in its "
                f"network namespace {occupant.netns} it is {' and '.join(map(str, sorted(instead)))}, which counts"
            )
            return
        self._use(_Use(owner, address, occupant.netns, real=False, told=True, created=occupant.created))

    def _use(self, use: _Use) -> None:
        users = self._uses.setdefault((use.owner.network, use.address), {})
        before = users.get(use.owner.container_id)
        if before is None or use.standing < before.standing:
            users[use.owner.container_id] = use

    def _networks_of(self, address: Address) -> tuple[str, ...]:
        """The networks with a block that has the address: several if they overlap, and then all of them hold it."""
        return tuple(name for name in sorted(self._plans) if self._has(name, address))

    def _ours_to_hold(self, networks: Iterable[str]) -> Iterator[str]:
        """Those that nobody else gives addresses of: what a Claim gave, that keeps, under its owner's real name."""
        return (network for network in networks if not self._plans[network].claimed)

    def _has(self, network: str, address: Address) -> bool:
        plan = self._plans.get(network)
        return plan is not None and any(address in block.prefix and address != block.gateway for block in plan.blocks)


def _only(pods: Iterable[RunningPod]) -> RunningPod | None:
    found = tuple(pods)
    return found[0] if len(found) == 1 else None
