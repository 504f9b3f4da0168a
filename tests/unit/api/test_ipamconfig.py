"""What holds once Network, IPAMConfig and defaults are put together."""

from __future__ import annotations

import pytest

from allotment.api.decoding import decode
from allotment.api.ipamconfig import IPAMConfig, effective
from allotment.api.meta import ObjectMeta
from unit.api.cases import l3, thing


def config(**spec):
    resource = decode(thing("IPAMConfig", "default", **spec)).resource
    assert isinstance(resource, IPAMConfig)
    return resource


def network(**spec):
    return decode(l3("10.4.0.0/24", **spec)).resource


def test_defaults_of_a_missing_object_and_of_missing_fields():
    for found in (effective(None), effective(IPAMConfig(ObjectMeta("default"))), effective(None, network())):
        assert not found.strict_affinity
        assert found.max_blocks == 20
        assert found.auto_allocate_blocks
        assert found.cooldown_seconds == 30
        assert found.vm_address_persistence
        assert found.conflicts == ()


def test_the_networks_own_cooldown_wins_also_when_it_is_zero():
    assert effective(config(cooldownSeconds=60), network()).cooldown_seconds == 60
    assert effective(config(cooldownSeconds=60), network(cooldownSeconds=0)).cooldown_seconds == 0
    assert effective(config(cooldownSeconds=0), network()).cooldown_seconds == 0


@pytest.mark.parametrize(
    ("host", "node", "cap"), [(0, 0, 20), (4, 0, 4), (0, 4, 4), (4, 7, 4), (7, 4, 4), (50, 0, 50), (50, 30, 30)]
)
def test_the_cap_is_the_smaller_that_is_not_zero(host, node, cap):
    merged = effective(config(strictAffinity=True, maxBlocksPerHost=host), network(maxBlocksPerNode=node))
    assert merged.max_blocks == cap
    assert merged.conflicts == ()


def test_cross_field_rules_hold_for_merged_values():
    assert len(effective(None, network(autoAllocateBlocks=False)).conflicts) == 1
    assert len(effective(None, network(maxBlocksPerNode=3)).conflicts) == 1
    assert len(effective(None, network(maxBlocksPerNode=3, autoAllocateBlocks=False)).conflicts) == 2
    strict = config(strictAffinity=True, autoAllocateBlocks=False)
    assert effective(strict, network(maxBlocksPerNode=3)).conflicts == ()
    assert effective(strict, network(autoAllocateBlocks=True)).auto_allocate_blocks


def test_persistence_can_be_turned_off():
    assert not effective(config(vmAddressPersistence="Disabled")).vm_address_persistence
