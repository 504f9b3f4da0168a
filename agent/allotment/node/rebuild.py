"""A lost ledger, made again from what runs.

Two witnesses, each with what only it knows: libcni's cache of results (which container, pod and network an address
was given to) and the network namespaces themselves (which addresses are really in use). A pod that either of them
shows keeps its address; where only a namespace shows one, its owner is named after the namespace until a DEL that
names the same namespace and interface ends it.

A witness that can't be heard stops the rebuild: a lease that is forgotten would be given to somebody else (I1, I8).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from allotment.addressing.address import Address, parse_address
from allotment.addressing.book import Claimed
from allotment.addressing.errors import ConfigError, InternalError
from allotment.addressing.lease import Owner
from allotment.node.attaching.attachments import UNKNOWN_OWNER

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from allotment.addressing.address import Prefix
    from allotment.addressing.plan import NetworkPlan

__all__ = [
    "IPAM_TYPE",
    "CachedAttachment",
    "Observed",
    "Rebuilt",
    "living_namespaces",
    "observe_namespaces",
    "read_cni_cache",
    "rebuild",
]

IPAM_TYPE = "allotment"
"""The name of our binary, as CNI configurations name it."""


@dataclass(frozen=True, slots=True)
class CachedAttachment:
    """What libcni remembers of one ADD that asked us: the owner, and every address in the final result."""

    owner: Owner
    netns: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """An address that is configured in a network namespace now."""

    netns: str
    interface: str
    address: Address


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Who has which address, and what a person should know about how sure that is.

    `unplaced` are addresses in use that lie in no block known so far: another's, or of a network not heard of yet.
    With each stands the network that it was given in; None where only a namespace shows it.
    """

    claims: tuple[Claimed, ...]
    remarks: tuple[str, ...]
    unplaced: frozenset[tuple[str | None, Address]] = frozenset()

    def can_place(self, plans: Iterable[NetworkPlan]) -> bool:
        """Whether by these plans one of the unplaced addresses lies in a block."""
        return any(
            name in (None, plan.name) and _block_of((block.prefix for block in plan.blocks), address) is not None
            for name, address in self.unplaced
            for plan in plans
        )

    def late(self, later: Rebuilt) -> tuple[Claimed, ...]:
        """The claims of a later rebuild that concern what was unplaced in this one."""
        return tuple(
            claim
            for claim in later.claims
            if not self.unplaced.isdisjoint({(None, claim.address), (claim.owner.network, claim.address)})
        )


class _CacheFile(msgspec.Struct, rename="camel"):
    """libcni's `cachedInfo` (containernetworking/cni, libcni/api.go); `netns` is there since libcni 1.2."""

    kind: str = ""
    container_id: str = ""
    config: bytes = b""
    if_name: str = ""
    network_name: str = ""
    netns: str = ""
    cni_args: list[tuple[str, str]] | None = None
    result: dict[str, Any] | None = None


def read_cni_cache(folder: Path) -> tuple[CachedAttachment, ...]:
    """Read the attachments in `<folder>/results` whose configuration asked us for addresses.

    A missing folder holds none (no runtime on libcni ran here). A single file that can't be read is passed over:
    libcni writes them without a rename, so one may be half there; the namespaces still speak for its pod.

    Raises:
        InternalError: the folder is there but can't be listed.
    """
    results = folder / "results"
    try:
        files = sorted(results.iterdir())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InternalError(f"cannot read libcni's cache {results}: {error.strerror}") from error
    found = []
    for file in files:
        try:
            cached = msgspec.json.decode(file.read_bytes(), type=_CacheFile)
            config = msgspec.json.decode(cached.config)
        except (OSError, msgspec.DecodeError):
            continue
        network = _network_of(config, cached.network_name)
        if network is not None and cached.container_id and cached.if_name:
            arguments = dict(cached.cni_args or ())
            owner = Owner(
                network=network,
                container_id=cached.container_id,
                interface=cached.if_name,
                pod_namespace=arguments.get("K8S_POD_NAMESPACE", ""),
                pod_name=arguments.get("K8S_POD_NAME", ""),
                pod_uid=arguments.get("K8S_POD_UID", ""),
                conf_name=cached.network_name,
            )
            found.append(CachedAttachment(owner, cached.netns, _addresses(cached.result)))
    return tuple(found)


async def living_namespaces(paths: Iterable[str]) -> frozenset[str]:
    """Those of `paths` at which a network namespace is mounted now."""
    from allotment.net.namespaces import identity  # noqa: PLC0415  # most agents never rebuild

    wanted = frozenset(paths)
    return await asyncio.to_thread(lambda: frozenset(path for path in wanted if identity(Path(path)) is not None))


async def observe_namespaces(folders: Iterable[Path]) -> tuple[Observed, ...]:
    """Read every address in every namespace mounted in `folders`.

    Raises:
        InternalError: a folder can't be listed, or a namespace that is still there can't be read.
    """
    from allotment.net.namespaces import addresses_in, identity, namespaces_below  # noqa: PLC0415  # as above

    observed: list[Observed] = []
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        for path in await asyncio.to_thread(namespaces_below, folder):
            key = identity(path)
            if key is None or key in seen:
                continue
            seen.add(key)
            try:
                inside = await addresses_in(path)
            except InternalError:
                if identity(path) != key:
                    continue  # it went away while we looked
                raise
            observed += [Observed(str(path), entry.interface, entry.address) for entry in inside]
    return tuple(observed)


def rebuild(
    plans: Sequence[NetworkPlan],
    cached: Iterable[CachedAttachment],
    observed: Iterable[Observed],
    *,
    living: Container[str],
) -> Rebuilt:
    """Decide which leases there must be. Pure: the witnesses' statements come in, claims go out.

    A cached attachment counts unless its namespace is known to be gone (`living` has the paths that are there). Of
    two that claim one address, the one whose namespace really has it wins, and a remark tells of the other.
    """
    real = {(item.netns, item.address): item for item in observed}
    holders: dict[tuple[str, Address], tuple[Owner, str, bool]] = {}
    remarks: list[str] = []
    unplaced: set[tuple[str | None, Address]] = set()
    blocks = {plan.name: tuple(block.prefix for block in plan.blocks) for plan in plans}
    for attachment in cached:
        if attachment.netns and attachment.netns not in living:
            continue
        for address in attachment.addresses:
            if _block_of(blocks.get(attachment.owner.network, ()), address) is None:
                unplaced.add((attachment.owner.network, address))
                continue
            key = (attachment.owner.network, address)
            confirmed = (attachment.netns, address) in real
            other = holders.get(key)
            if other is not None:
                remarks.append(
                    f"{address} is claimed by containers {other[0].container_id} and {attachment.owner.container_id}"
                )
            if other is None or (confirmed and not other[2]):
                holders[key] = (attachment.owner, attachment.netns, confirmed)
    known = {(netns, address) for (_, address), (_, netns, _) in holders.items()}
    for (netns, address), item in sorted(real.items()):
        network = next((name for name, cut in blocks.items() if _block_of(cut, address) is not None), None)
        if network is None:
            unplaced.add((None, address))
        if network is None or (netns, address) in known:
            continue
        if (network, address) in holders:
            remarks.append(f"{address} is also configured on {item.interface} in {netns}: a conflict, left alone")
            continue
        container = UNKNOWN_OWNER + netns.rsplit("/", 1)[-1]
        holders[network, address] = (Owner(network, container, item.interface), netns, True)
        remarks.append(f"{address} is in use on {item.interface} in {netns}, by a container that nobody names")
    claims = [
        Claimed(owner, address, netns)
        for (_, address), (owner, netns, _) in sorted(holders.items(), key=lambda entry: entry[0])
    ]
    return Rebuilt(tuple(claims), tuple(remarks), frozenset(unplaced))


def _block_of(blocks: Iterable[Prefix], address: Address) -> Prefix | None:
    return next((block for block in blocks if address in block), None)


def _network_of(config: object, name: str) -> str | None:
    """The network a cached configuration asked us for; None when it did not ask us."""
    if not isinstance(config, dict):
        return None
    plugins = config.get("plugins") or [config]
    for plugin in plugins:
        ipam = plugin.get("ipam") if isinstance(plugin, dict) else None
        if isinstance(ipam, dict) and ipam.get("type") == IPAM_TYPE:
            network = ipam.get("network")
            return network if isinstance(network, str) and network else name
    return None


def _addresses(result: dict[str, Any] | None) -> tuple[Address, ...]:
    found = []
    for entry in (result or {}).get("ips") or ():
        text = entry.get("address") if isinstance(entry, dict) else None
        if isinstance(text, str):
            try:
                found.append(parse_address(text.split("/")[0]))
            except ConfigError:
                continue
    return tuple(found)
