"""One CNI call, parsed once at the border into one frozen value; nothing further in reads an environment or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from allotment.addressing.errors import ConfigError, DecodeError
from allotment.addressing.lease import Owner
from allotment.cni import environment
from allotment.cni.asked import Route, previous_addresses, requested_addresses, routes
from allotment.cni.configuration import (
    AddConf,
    AnyConf,
    CheckConf,
    Conf,
    Dns,
    GcConf,
    decode,
    decode_previous,
    is_gc_entry,
    network_of,
    said,
    salvage,
)
from allotment.cni.environment import Arguments, is_name
from allotment.cni.versions import NEWEST, SUPPORTED, Verb, asked_version, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from allotment.addressing.address import Address

__all__ = ["CniRequest", "Dns", "Route", "Verb", "parse_request"]


class CniRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call, checked.

    Texts are "" where the caller said nothing (or, for DEL, nothing that could be a lease's). Of the later fields
    each verb has its own: `requested`, `routes`, `dns`, `is_gateway` belong to ADD, `previous` to CHECK,
    `valid_attachments` to GC. `cni_version` is one that we speak, but for VERSION, where it is any text. `network` is
    None where nothing names one, which only DEL and STATUS may do.

    `passes_through` says that the call is for the entry of our conflist that is there to hear GC
    (docs/decisions/0003): ADD is answered by `allotment.cni.result.passed_through`, DEL and CHECK do nothing and
    succeed.
    """

    verb: Verb
    cni_version: str
    container_id: str = ""
    interface: str = ""
    netns: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    infra_container_id: str = ""
    conf_name: str = ""
    network: str | None = None
    main_type: str = ""  # `type`: the plugin that delegates to us, or our own name
    passes_through: bool = False
    is_gateway: bool = False  # the plugin puts the gateway's address on the host itself
    requested: tuple[Address, ...] = ()  # at most one of a family
    routes: tuple[Route, ...] = ()
    dns: Dns | None = None
    previous: tuple[Address, ...] = ()  # what prevResult says this interface has
    previous_result: bytes = b""  # prevResult as it came, for the ADD of a GC entry alone
    valid_attachments: frozenset[tuple[str, str]] = frozenset()  # (container ID, interface)

    @property
    def one_block(self) -> bool:
        """Whether all addresses of a family must come from one block: `bridge` takes one gateway of each."""
        return self.is_gateway and self.main_type == "bridge"

    def owner(self) -> Owner:
        """The owner of the lease that this call is about.

        Raises:
            ValueError: the call names no network.
        """
        if self.network is None:
            raise ValueError("a call that names no network has no owner")
        return Owner(
            network=self.network,
            container_id=self.container_id,
            interface=self.interface,
            pod_namespace=self.pod_namespace,
            pod_name=self.pod_name,
            pod_uid=self.pod_uid,
            conf_name=self.conf_name,
        )


_ADD: Final = msgspec.json.Decoder(AddConf)
_CHECK: Final = msgspec.json.Decoder(CheckConf)
_GC: Final = msgspec.json.Decoder(GcConf)
_ANY: Final = msgspec.json.Decoder(Conf)


def parse_request(env: Mapping[str, str], body: bytes) -> CniRequest:
    """Parse the `CNI_*` variables and standard input of one call.

    A DEL is taken whatever its configuration looks like, as long as it says which container and interface. STATUS
    minds the version alone: a configuration that has gone bad must not cost a node its readiness.

    Raises:
        EnvironmentInvalid: a variable is missing or malformed.
        VersionError: we don't speak the configuration's version, or it has no such verb.
        DecodeError: the configuration is not JSON.
        ConfigError: the configuration says something impossible; the message names the field.
    """
    verb = environment.parse_verb(env)
    match verb:
        case Verb.ADD:
            return _parse_add(env, body)
        case Verb.DEL:
            return _parse_del(env, body)
        case Verb.CHECK:
            return _parse_check(env, body)
        case Verb.GC:
            return _parse_gc(body)
        case Verb.STATUS:
            return _parse_status(body)
        case Verb.VERSION:
            return CniRequest(verb=verb, cni_version=asked_version(body))


def _parse_add(env: Mapping[str, str], body: bytes) -> CniRequest:
    caller, arguments = _caller(env, Verb.ADD)
    conf = _decode(_ADD, body, Verb.ADD)
    network = network_of(conf)
    if is_gc_entry(conf):
        if not said(conf.previous):
            raise ConfigError(
                "the gc entry must stand after the plugin that makes the interface; there is no prevResult"
            )
        return replace(
            caller,
            cni_version=conf.cni_version,
            conf_name=conf.name,
            network=network,
            main_type=conf.type or "",
            passes_through=True,
            previous_result=bytes(conf.previous),
        )
    return replace(
        caller,
        cni_version=conf.cni_version,
        conf_name=conf.name,
        network=network,
        main_type=conf.type or "",
        is_gateway=bool(conf.is_gateway or conf.is_default_gateway),
        requested=requested_addresses(arguments, conf, network),
        routes=routes(conf.ipam.routes) if conf.ipam and conf.ipam.routes else (),
        dns=conf.dns,
    )


def _parse_del(env: Mapping[str, str], body: bytes) -> CniRequest:
    caller, _ = _caller(env, Verb.DEL)
    conf = _tolerated(body)
    return replace(
        caller,
        cni_version=conf.cni_version if conf.cni_version in SUPPORTED else NEWEST,
        conf_name=_name_or_nothing(conf.name) or "",
        network=_network_or_none(conf),
        main_type=conf.type or "",
        passes_through=conf.ipam is None and conf.role == "gc",
    )


def _parse_check(env: Mapping[str, str], body: bytes) -> CniRequest:
    caller, _ = _caller(env, Verb.CHECK)
    conf = _decode(_CHECK, body, Verb.CHECK)
    passes_through = is_gc_entry(conf)
    return replace(
        caller,
        cni_version=conf.cni_version,
        conf_name=conf.name,
        network=network_of(conf),
        main_type=conf.type or "",
        passes_through=passes_through,
        previous=() if passes_through else previous_addresses(decode_previous(conf.previous), caller.interface),
    )


def _parse_gc(body: bytes) -> CniRequest:
    conf = _decode(_GC, body, Verb.GC)
    network = network_of(conf)
    # The first key is the specification's; libcni sends both, since the specification first named it otherwise.
    # Should they differ, an attachment that either lists is valid: a lease kept too long can be put right later.
    lists = [found for found in (conf.valid_attachments, conf.attachments) if found is not UNSET]
    if not lists:
        raise ConfigError(
            'GC needs the list "cni.dev/valid-attachments"; nothing was freed, for a list that is missing is not an '
            "empty one"
        )
    return CniRequest(
        verb=Verb.GC,
        cni_version=conf.cni_version or "",
        conf_name=conf.name or "",
        network=network,
        main_type=conf.type or "",
        valid_attachments=frozenset((entry.container_id, entry.interface) for found in lists for entry in found or ()),
    )


def _parse_status(body: bytes) -> CniRequest:
    conf = _tolerated(body)
    version = conf.cni_version or ""
    require(version, Verb.STATUS)
    return CniRequest(
        verb=Verb.STATUS,
        cni_version=version,
        conf_name=_name_or_nothing(conf.name) or "",
        network=_network_or_none(conf),
        main_type=conf.type or "",
    )


def _caller(env: Mapping[str, str], verb: Verb) -> tuple[CniRequest, Arguments]:
    """The part of a request that the variables say."""
    arguments = environment.parse_arguments(env, verb)
    request = CniRequest(
        verb=verb,
        cni_version="",
        container_id=environment.container_id(env, verb),
        interface=environment.interface(env, verb),
        netns=environment.netns(env, verb),
        pod_namespace=arguments.get("K8S_POD_NAMESPACE", ""),
        pod_name=arguments.get("K8S_POD_NAME", ""),
        pod_uid=arguments.get("K8S_POD_UID", ""),
        infra_container_id=arguments.get("K8S_POD_INFRA_CONTAINER_ID", ""),
    )
    return request, arguments


def _decode(decoder: msgspec.json.Decoder[AnyConf], body: bytes, verb: Verb) -> AnyConf:
    """Decode strictly, but say first that the version is not ours: then a field may well be of another type."""
    try:
        conf = decode(decoder, body)
    except ConfigError:
        version = salvage(body).cni_version
        if version is not None:
            require(version, verb)
        raise
    require(conf.cni_version or "", verb)
    return conf


def _tolerated(body: bytes) -> Conf:
    try:
        return decode(_ANY, body)
    except (ConfigError, DecodeError):
        return salvage(body)


def _name_or_nothing(text: str | None) -> str | None:
    return text if text and is_name(text) else None


def _network_or_none(conf: Conf) -> str | None:
    return _name_or_nothing(conf.ipam.network if conf.ipam else None) or _name_or_nothing(conf.name)
