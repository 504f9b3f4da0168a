"""IPAMConfig: the defaults of all Networks, in one object named `default`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

from allotment.api.meta import API_VERSION, APIObject, Record, limits
from allotment.api.network import COOLDOWN_LIMIT, Network

__all__ = ["CONFIG_NAME", "DEFAULT_BLOCK_CAP", "Effective", "IPAMConfig", "IPAMConfigSpec", "effective"]

CONFIG_NAME = "default"
DEFAULT_BLOCK_CAP = 20
"""Blocks one node may claim in a network where neither the Network nor the IPAMConfig sets a cap."""

_COOLDOWN = 30

_T = TypeVar("_T")

NO_BLOCKS_AT_ALL = (
    "strictAffinity false with autoAllocateBlocks false would give no node any block; "
    "set strictAffinity: true or autoAllocateBlocks: true"
)
CAP_WITHOUT_AFFINITY = "a cap on a node's blocks needs strictAffinity: true; set that, or the cap to 0"


class IPAMConfigSpec(Record, frozen=True):
    """The defaults of all Networks; what is missing here is false, 0, true, 30 and Enabled, in this order."""

    strict_affinity: bool | None = None
    max_blocks_per_host: Annotated[int | None, limits(minimum=0, maximum=(1 << 31) - 1)] = None
    auto_allocate_blocks: bool | None = None
    cooldown_seconds: Annotated[int | None, limits(minimum=0, maximum=COOLDOWN_LIMIT)] = None
    vm_address_persistence: Literal["Enabled", "Disabled"] | None = None


class IPAMConfig(APIObject, frozen=True):
    """The defaults of all Networks, in one object named `default`."""

    spec: IPAMConfigSpec = IPAMConfigSpec()
    api_version: str = msgspec.field(default_factory=lambda: API_VERSION)
    kind: str = msgspec.field(default_factory=lambda: "IPAMConfig")


class Effective(msgspec.Struct, frozen=True):
    """What holds for a Network once its own fields and the IPAMConfig are put together.

    `max_blocks` is the cap on a node's blocks; it limits new claims only. `conflicts` says which cross-field rules
    the merged values break (condition `ConfigConflict`), empty when all is well.
    """

    strict_affinity: bool
    max_blocks: int
    auto_allocate_blocks: bool
    cooldown_seconds: int
    vm_address_persistence: bool
    conflicts: tuple[str, ...] = ()


def effective(config: IPAMConfig | None, network: Network | None = None) -> Effective:
    """Put a Network's fields over the IPAMConfig's, and those over the defaults; both may be missing.

    The Network's own cooldown and `autoAllocateBlocks` win. The block cap is the smaller of the two that are not
    zero, and 20 when both are. The defaults: `strictAffinity` false, `maxBlocksPerHost` 0, `autoAllocateBlocks`
    true, `cooldownSeconds` 30, `vmAddressPersistence` Enabled.
    """
    base = config.spec if config is not None else IPAMConfigSpec()
    own_cap, own_auto, own_cooldown = None, None, None
    if network is not None:
        own_cap = network.spec.max_blocks_per_node
        own_auto = network.spec.auto_allocate_blocks
        own_cooldown = network.spec.cooldown_seconds
    strict = base.strict_affinity is True
    caps = [cap for cap in (base.max_blocks_per_host, own_cap) if cap]
    auto = _first(own_auto, base.auto_allocate_blocks, default=True)
    conflicts = []
    if not strict and not auto:
        conflicts.append(NO_BLOCKS_AT_ALL)
    if caps and not strict:
        conflicts.append(CAP_WITHOUT_AFFINITY)
    return Effective(
        strict_affinity=strict,
        max_blocks=min(caps, default=DEFAULT_BLOCK_CAP),
        auto_allocate_blocks=auto,
        cooldown_seconds=_first(own_cooldown, base.cooldown_seconds, default=_COOLDOWN),
        vm_address_persistence=base.vm_address_persistence != "Disabled",
        conflicts=tuple(conflicts),
    )


def _first(*values: _T | None, default: _T) -> _T:
    return next((value for value in values if value is not None), default)
