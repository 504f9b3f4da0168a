"""Leases as the JSON that a main plugin of each CNI version expects, and CHECK's comparison with it.

Source: CNI spec 1.1.0, section 5 "Delegated plugins (IPAM)", and the same part of 0.3.0 to 1.0.0: no `interfaces`, no
`interface` in `ips`. Before 1.0.0 each address says its `version`; before 1.1.0 a route is only `dst` and `gw`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from allotment.addressing.address import Address, Family, Prefix
from allotment.addressing.errors import CheckFailed, ConfigError
from allotment.cni.request import CniRequest, Dns, Route
from allotment.cni.versions import at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from allotment.addressing.lease import Lease

__all__ = ["ToldAddress", "add_result", "check", "passed_through"]


class ToldAddress(msgspec.Struct, frozen=True):
    """A leased address as the pod is told it: with this prefix length, behind this gateway."""

    address: Address
    length: int
    gateway: Address | None = None


_ENCODER: Final = msgspec.json.Encoder()
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_DNS: Final = Dns()

_EVERYWHERE: Final = Prefix(Family.V4, 0, 0)
_ON_LINK: Final = Route(
    _EVERYWHERE,
    gateway=_EVERYWHERE.first,  # "no gateway" to the kernel; left out, the main plugin would put in the address's own
    priority=1_000_000,  # behind every route that is meant to be used
    scope=253,  # link, rtnetlink(7)
)


def add_result(request: CniRequest, told: Iterable[ToldAddress]) -> bytes:
    """The answer to an ADD, IPv4 first.

    A route of a family that got no address is left out: the main plugin would try to install it, and fail where the
    pod has that family switched off.
    """
    addresses = sorted(told, key=lambda one: one.address)
    families = {one.address.family for one in addresses}
    version = request.cni_version
    result: dict[str, Any] = {
        "cniVersion": version,
        "ips": [_ip(one, named=not at_least(version, "1.0.0")) for one in addresses],
    }
    whole = at_least(version, "1.1.0")
    routes = [_route(route, whole=True) for one in addresses for route in _routes_to_gateway(request, one)]
    routes += [_route(route, whole=whole) for route in request.routes if route.destination.family in families]
    if routes:
        result["routes"] = routes
    if request.dns is not None and request.dns != _NO_DNS:
        result["dns"] = request.dns
    return _ENCODER.encode(result)


def passed_through(request: CniRequest) -> bytes:
    """The answer to an ADD of our conflist's GC entry: `prevResult` as it came, in the version asked for.

    Raises:
        ConfigError: prevResult is no JSON object.
    """
    try:
        result = _OBJECT.decode(request.previous_result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"the network configuration is wrong at prevResult: {error}") from error
    return _ENCODER.encode({**result, "cniVersion": request.cni_version})


def check(request: CniRequest, leases: Sequence[Lease]) -> None:
    """See that the leases are exactly the addresses that prevResult says this interface has.

    Raises:
        CheckFailed: an address has no lease, or a lease is of another address; the message names it.
    """
    who = f"container {request.container_id}, interface {request.interface}, network {request.network}"
    held = {lease.address for lease in leases}
    had = set(request.previous)
    if not held:
        raise CheckFailed(f"{who}: holds no lease, but was given {_listed(had)}; restart the pod")
    lost = had - held
    if lost:
        raise CheckFailed(f"{who}: uses {_listed(lost)} without a lease, which is for {_listed(held)}; restart the pod")
    unknown = held - had
    if unknown:
        raise CheckFailed(
            f"{who}: holds a lease of {_listed(unknown)}, but prevResult gives it {_listed(had)}; restart the pod"
        )


@lru_cache(maxsize=256)  # every pod of a block is told the same one
def _gateway(address: Address) -> str:
    return str(address)


def _routes_to_gateway(request: CniRequest, told: ToldAddress) -> Iterator[Route]:
    """What `ptp` needs to reach an IPv4 gateway that lies outside the address's prefix (169.254.1.1).

    It installs our routes before its own one to the gateway, and Linux takes no route via a gateway that no route of
    link scope leads to: the first route here does. Having set up the address it deletes the route to the prefix that
    the kernel makes by itself, and fails if there is none, as with /32: the second is there to be deleted. CHECK looks
    for routes by destination, and finds both. Plugins too old to know `scope` can't have such a gateway and routes.
    Nothing is needed for IPv6, where every interface reaches fe80::1. (containernetworking/plugins v1.10.0,
    plugins/main/ptp and pkg/ipam.)
    """
    address, gateway = told.address, told.gateway
    if request.main_type != "ptp" or address.family is not Family.V4 or gateway is None:
        return
    shift = Family.V4.bits - told.length
    if address.value >> shift == gateway.value >> shift:
        return
    alone = told.length == Family.V4.bits
    if alone or any(
        route.destination.family is Family.V4 and route.gateway in (None, gateway) for route in request.routes
    ):
        yield _ON_LINK
    if alone:
        yield Route(Prefix(Family.V4, address.value, told.length), gateway)


def _ip(told: ToldAddress, *, named: bool) -> dict[str, str]:
    entry = {"address": f"{told.address}/{told.length}"}
    if named:
        entry["version"] = "4" if told.address.family is Family.V4 else "6"
    if told.gateway is not None:
        entry["gateway"] = _gateway(told.gateway)
    return entry


@lru_cache(maxsize=256)  # a node has few configurations, and each pod's call repeats one
def _route(route: Route, *, whole: bool) -> msgspec.Raw:
    entry: dict[str, str | int] = {"dst": str(route.destination)}
    if route.gateway is not None:
        entry["gw"] = str(route.gateway)
    if whole:
        for name in ("mtu", "advmss", "priority", "table", "scope"):
            value = getattr(route, name)
            if value is not None:
                entry[name] = value
    return msgspec.Raw(_ENCODER.encode(entry))


def _listed(addresses: Iterable[Address]) -> str:
    return " and ".join(str(address) for address in sorted(addresses)) or "no address"
