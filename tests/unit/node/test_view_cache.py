"""The View that a node starts from while its source can't be read (I12): whole, or none."""

import asyncio

import pytest

from allotment.node.view_cache import ViewCache, kept_view
from allotment.testing.clock import let_run
from allotment.testing.store import MemoryStore
from looking import allocation, network, reservation, view_of

BLUE = network()
VIEW = view_of(BLUE, allocation(BLUE), reservation("kept-back", "10.4.1.128/25"))


@pytest.mark.parametrize("writes", range(5))
async def test_a_crash_leaves_a_view_whole_or_not_at_all(writes):
    """A Network without its Allocation would be taken for one that this node has no block of."""
    store = MemoryStore()
    store.stalled = True
    keeping = asyncio.create_task(ViewCache(store, local_l2=True).keep(VIEW))
    for _ in range(writes):
        await let_run()
        store.finish(1)
    store.drop()
    keeping.cancel()
    found = kept_view(store.objects())
    if found is not None:
        assert (found.networks, found.allocations, found.reservations) == (
            VIEW.networks,
            VIEW.allocations,
            VIEW.reservations,
        )
    assert (found is not None) == (writes > 0)
