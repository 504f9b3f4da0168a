"""libcni's cache of results: which container, pod and network an address was given to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from allotment.addressing.address import Address, parse_address
from allotment.addressing.errors import ConfigError, InternalError
from allotment.addressing.lease import Owner
from allotment.node.rebuilding.evidence import CachedAttachment

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["IPAM_TYPE", "read_cni_cache"]

IPAM_TYPE = "allotment"
"""The name of our binary, as CNI configurations name it."""


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
