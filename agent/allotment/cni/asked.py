"""What a configuration and its call ask for: addresses and routes, checked and compared by value.

Addresses are asked for in four ways, in this order: the capability `ips`, `args.cni.ips`, `CNI_ARGS` `IP` (CNI
CONVENTIONS) and the pod's annotation `allotment.dev/ips` (DESIGN 7). They are merged, at most one of each family.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from allotment.addressing.address import Address, Family, Prefix, parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.cni.configuration import annotated_addresses
from allotment.cni.environment import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allotment.cni.configuration import AddConf, PreviousResult, RouteConf
    from allotment.cni.environment import Arguments

__all__ = ["Route", "previous_addresses", "requested_addresses", "routes"]

_LONGEST_ADDRESS: Final = 64  # characters; 49 is an IPv6 address with an embedded IPv4 one and a prefix length


class Route(msgspec.Struct, frozen=True):
    """A route that the configuration wants in the pod; what is None was not said."""

    destination: Prefix
    gateway: Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


def requested_addresses(arguments: Arguments, conf: AddConf, network: str) -> tuple[Address, ...]:
    """The addresses asked for, in order of precedence; said twice is said once.

    Raises:
        ConfigError: one is no address, or there are two of one family.
    """
    chosen: dict[Family, tuple[Address, str]] = {}
    for place, text in _asked(arguments, conf, network):
        address = _address(text, place)
        known, said_in = chosen.setdefault(address.family, (address, place))
        if known != address:
            raise ConfigError(
                f"two {address.family} addresses are asked for, {known} ({said_in}) and {address} ({place}); an "
                "interface gets one of each family"
            )
    return tuple(address for address, _ in chosen.values())


def _asked(arguments: Arguments, conf: AddConf, network: str) -> Iterator[tuple[str, str]]:
    """(where it is said, text) of every address asked for."""
    runtime = conf.runtime_config
    args = conf.args.cni.ips if conf.args and conf.args.cni else None
    if runtime and runtime.ips:
        yield from (("runtimeConfig.ips", text) for text in runtime.ips)
    if args:
        yield from (("args.cni.ips", text) for text in args)
    elif "IP" in arguments:
        # CNI's CONVENTIONS: a plugin that understands args ignores the same said in CNI_ARGS. Several are separated
        # by commas, as the reference plugin `static` has it.
        yield from (("CNI_ARGS IP", text.strip()) for text in arguments["IP"].split(","))
    if runtime and runtime.pod_annotations and runtime.pod_annotations.ips:
        for text in annotated_addresses(runtime.pod_annotations.ips, network):
            yield "the pod's annotation allotment.dev/ips", text


def _address(text: str, place: str) -> Address:
    """One address; a prefix length after it is read past, because runtimes pass both forms."""
    plain, slash, length = _bounded(text, place).partition("/")
    try:
        address = parse_address(plain)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}") from error
    if slash and not (length.isascii() and length.isdigit() and int(length) <= address.family.bits):
        raise ConfigError(f"{place}: {shown(text)} has a bad prefix length; write the address alone: {str(address)!r}")
    return address


def _bounded(text: str, place: str) -> str:
    if len(text) > _LONGEST_ADDRESS:
        raise ConfigError(f"{place}: {shown(text)} is too long for an address")
    return text


@lru_cache(maxsize=64)  # a node has few configurations, and each pod's call repeats one
def routes(confs: tuple[RouteConf, ...]) -> tuple[Route, ...]:
    """`ipam.routes`, checked.

    Raises:
        ConfigError: a destination is no prefix, or a gateway no address of its family.
    """
    found = []
    for index, conf in enumerate(confs):
        place = f"ipam.routes[{index}]"
        try:
            destination = parse_prefix(_bounded(conf.dst, "dst"))
            gateway = parse_address(_bounded(conf.gw, "gw")) if conf.gw else None
        except ConfigError as error:
            raise ConfigError(f"{place}: {error.message}") from error
        if gateway is not None and gateway.family is not destination.family:
            raise ConfigError(f"{place}: the gateway {gateway} is not of the same family as {destination}")
        found.append(Route(destination, gateway, conf.mtu, conf.advmss, conf.priority, conf.table, conf.scope))
    return tuple(found)


def previous_addresses(result: PreviousResult, interface: str) -> tuple[Address, ...]:
    """The addresses that prevResult has on this interface; other plugins of the list may have added others.

    Raises:
        ConfigError: one is no address.
    """
    interfaces = result.interfaces or ()
    addresses = []
    for index, entry in enumerate(result.ips or ()):
        where = entry.interface
        if where is not None and 0 <= where < len(interfaces) and interfaces[where].name != interface:
            continue
        addresses.append(_address(entry.address, f"prevResult.ips[{index}].address"))
    return tuple(addresses)
