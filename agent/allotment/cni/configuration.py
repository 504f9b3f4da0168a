"""The configuration on standard input, decoded straight into types; what we don't use is skipped, not looked at.

Sources: CNI spec 1.1.0, sections 1 (configuration) and 3 ("Deriving request configuration"); the CNI project's
CONVENTIONS (capability `ips`, `args.cni.ips`). The reference plugins are written in Go, whose decoder takes null for
"not said"; so do we, except where a list of attachments is meant.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from allotment.addressing.errors import ConfigError, DecodeError
from allotment.cni.environment import is_name, shown

__all__ = [
    "AddConf",
    "AnyConf",
    "Attachment",
    "CheckConf",
    "Conf",
    "Dns",
    "GcConf",
    "PreviousAddress",
    "PreviousResult",
    "RouteConf",
    "annotated_addresses",
    "decode",
    "decode_previous",
    "is_gc_entry",
    "network_of",
    "said",
    "salvage",
]

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
"""What netlink can carry."""


class Dns(msgspec.Struct, frozen=True, omit_defaults=True):
    """`dns` of a configuration and of a result (CNI spec 1.1.0, section 5)."""

    nameservers: tuple[str, ...] | None = None
    domain: str | None = None
    search: tuple[str, ...] | None = None
    options: tuple[str, ...] | None = None


class RouteConf(msgspec.Struct, frozen=True):
    """One of `ipam.routes`, as it is written."""

    dst: str
    gw: str | None = None
    mtu: _Number | None = None
    advmss: _Number | None = None
    priority: _Number | None = None
    table: _Number | None = None
    scope: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None


class Attachment(msgspec.Struct, frozen=True):
    """An entry of GC's list of attachments that are still valid."""

    container_id: str = msgspec.field(name="containerID")
    interface: str = msgspec.field(name="ifname")


class PreviousAddress(msgspec.Struct, frozen=True):
    """One of `prevResult.ips`."""

    address: str
    interface: int | None = None


class _PreviousInterface(msgspec.Struct, frozen=True):
    name: str | None = None


class PreviousResult(msgspec.Struct, frozen=True):
    """`prevResult`, as far as CHECK looks at it."""

    ips: tuple[PreviousAddress, ...] | None = None
    interfaces: tuple[_PreviousInterface, ...] | None = None


class _Ipam(msgspec.Struct, frozen=True):
    network: str | None = None


class _AddIpam(msgspec.Struct, frozen=True):
    network: str | None = None
    routes: Annotated[tuple[RouteConf, ...], msgspec.Meta(max_length=256)] | None = None


class _PodAnnotations(msgspec.Struct, frozen=True):
    ips: str | None = msgspec.field(default=None, name="allotment.dev/ips")


class _RuntimeConfig(msgspec.Struct, frozen=True):
    ips: tuple[str, ...] | None = None
    pod_annotations: _PodAnnotations | None = msgspec.field(default=None, name="io.kubernetes.cri.pod-annotations")


class _CniArgs(msgspec.Struct, frozen=True):
    ips: tuple[str, ...] | None = None


class _Args(msgspec.Struct, frozen=True):
    cni: _CniArgs | None = None


class _Base(msgspec.Struct, frozen=True):
    cni_version: str | None = msgspec.field(default=None, name="cniVersion")
    name: str | None = None
    type: str | None = None
    role: str | None = None


class Conf(_Base, frozen=True):
    """What DEL and STATUS look at."""

    ipam: _Ipam | None = None


class GcConf(Conf, frozen=True):
    """What GC looks at. Here null is an empty list: it is how Go writes one that has no entry."""

    valid_attachments: tuple[Attachment, ...] | UnsetType | None = msgspec.field(
        default=UNSET, name="cni.dev/valid-attachments"
    )
    attachments: tuple[Attachment, ...] | UnsetType | None = msgspec.field(default=UNSET, name="cni.dev/attachments")


class CheckConf(Conf, frozen=True):
    """What CHECK looks at."""

    previous: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="prevResult")


class AddConf(_Base, frozen=True):
    """What ADD looks at."""

    ipam: _AddIpam | None = None
    is_gateway: bool | None = msgspec.field(default=None, name="isGateway")
    is_default_gateway: bool | None = msgspec.field(default=None, name="isDefaultGateway")
    runtime_config: _RuntimeConfig | None = msgspec.field(default=None, name="runtimeConfig")
    args: _Args | None = None
    dns: Dns | None = None
    previous: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="prevResult")


AnyConf = TypeVar("AnyConf", Conf, GcConf, CheckConf, AddConf)
_IPS: Final = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_PREVIOUS: Final = msgspec.json.Decoder(PreviousResult)
_PARTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode(decoder: msgspec.json.Decoder[AnyConf], body: bytes) -> AnyConf:
    """Decode a configuration.

    Raises:
        DecodeError: it is not JSON.
        ConfigError: a field that we use has the wrong type; the message names the field's path.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong(error) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise DecodeError(f"the network configuration on standard input is not readable JSON: {error}") from error


def salvage(body: bytes) -> Conf:
    """What can be read of a configuration that `decode` refuses; each field by itself, nothing raised."""
    try:
        parts = _PARTS.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return Conf()
    return Conf(
        cni_version=_part(parts, "cniVersion", str),
        name=_part(parts, "name", str),
        type=_part(parts, "type", str),
        role=_part(parts, "role", str),
        ipam=_part(parts, "ipam", _Ipam),
    )


def is_gc_entry(conf: Conf | GcConf | CheckConf | AddConf) -> bool:
    """Whether this is the entry of our own conflist that is there to hear GC (docs/decisions/0003).

    A configuration with an `ipam` object is an IPAM call whatever its `role`, which is then a word of the main
    plugin's own.

    Raises:
        ConfigError: `role` is something else.
    """
    if conf.role is None or conf.ipam is not None:
        return False
    if conf.role != "gc":
        raise ConfigError(f'role is {shown(conf.role)}; the only one there is is "gc"')
    return True


def said(raw: msgspec.Raw) -> bool:
    """Whether a part that is kept as it came is there at all."""
    return bytes(raw) not in (b"", b"null")


def decode_previous(raw: msgspec.Raw) -> PreviousResult:
    """Decode `prevResult`.

    Raises:
        ConfigError: it is missing, or a field that we use has the wrong type.
    """
    try:
        previous = _PREVIOUS.decode(raw) if said(raw) else None
    except msgspec.ValidationError as error:
        raise _wrong(error, "prevResult.") from error
    if previous is None:
        raise ConfigError("CHECK needs prevResult, the result of the ADD; the runtime has to put it in")
    return previous


def network_of(conf: Conf | GcConf | CheckConf | AddConf) -> str:
    """`ipam.network`, else the configuration's `name`.

    Raises:
        ConfigError: neither is there, or one is malformed.
    """
    name = conf.name
    if not name:
        raise ConfigError('the network configuration has no "name", and CNI wants one')
    if not is_name(name):
        raise ConfigError(_malformed("name", name))
    network = conf.ipam.network if conf.ipam else None
    if not network:
        return name
    if not is_name(network):
        raise ConfigError(_malformed("ipam.network", network))
    return network


def annotated_addresses(text: str, network: str) -> tuple[str, ...]:
    """What the pod's annotation `allotment.dev/ips` asks for in this network.

    Raises:
        ConfigError: it is not a JSON object of lists.
    """
    try:
        return _IPS.decode(text).get(network, ())
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ConfigError(
            f"the pod's annotation allotment.dev/ips is {shown(text)}; it must be JSON that names addresses by "
            f"""network, such as '{{"{network}": ["10.4.1.7"]}}': {error}"""
        ) from error


def _wrong(error: msgspec.ValidationError, within: str = "") -> ConfigError:
    what, _, path = str(error).partition(" - at `$")
    where = f"{within}{path.rstrip('`').lstrip('.')}".rstrip(".") or "the top"
    return ConfigError(f"the network configuration is wrong at {where}: {what}")


def _malformed(field: str, text: str) -> str:
    return (
        f"{field} of the network configuration is {shown(text)}; it must begin with a letter or digit and go on with "
        "letters, digits, '_', '.' or '-'"
    )


def _part(parts: dict[str, msgspec.Raw], key: str, wanted: type[Any]) -> Any:
    raw = parts.get(key)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=wanted)
    except (msgspec.MsgspecError, RecursionError):
        return None
