"""Leases, rests and ledgers to test with."""

import asyncio
import contextlib
import shutil
import subprocess

from allotment.addressing.address import Address, Family, parse_address, parse_prefix
from allotment.addressing.book import BookState
from allotment.addressing.lease import Cause, Granted, Lease, Moment, Owner, Released, Rest
from allotment.ledger import Ledger, LedgerReader

BOOT = "9b4f3c1e-boot-1"
V4, V6 = parse_prefix("10.4.1.0/24"), parse_prefix("fd00:4::/64")
NOW = Moment(BOOT, 500.25)


def lease(number, *, network="blue", sequence=None, block=V4, pod=None):
    """Lease `number`, of the address of that number in `block`."""
    return Lease(
        address=block.first + number,
        block=block,
        owner=Owner(network, f"c-{number}", "eth0", "default", pod or f"pod-{number}", f"uid-{number}", "conf"),
        sequence=number if sequence is None else sequence,
        since=Moment(BOOT, 100.5 + number),
        wall=1_700_000_000.0 + number,
        netns=f"/run/netns/{number}",
    )


def granted(*leases):
    return [Granted(each) for each in leases]


def released(*leases, wall=1_700_001_000.0, cause=Cause.DEL, detail="request 7"):
    return [Released(each, NOW, wall, cause, detail) for each in leases]


def rest_of(each, *, wall=1_700_001_000.0):
    return Rest(each.owner.network, each.block, each.address, each.address, NOW, wall)


def run_of(first, last, *, network="blue"):
    first, last = parse_address(first), parse_address(last)
    block = V4 if first.family is Family.V4 else V6
    return Rest(network, block, first, last, NOW, 1_700_001_000.0)


def addresses(rests):
    return {Address(r.first.family, value) for r in rests for value in range(r.first.value, r.last.value + 1)}


@contextlib.asynccontextmanager
async def opened(folder, *, snapshot=BookState, **settings):
    """A ledger that is closed at the end."""
    ledger = Ledger.open(folder, boot=BOOT, snapshot=snapshot, **{"ballast_bytes": 0, **settings})
    try:
        yield ledger
    finally:
        await ledger.close()


async def until(condition):
    """Let the event loop and the ledger's threads work until this holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.to_thread(lambda: None)


def state_of(folder):
    with LedgerReader(folder) as reader:
        return reader.content().book.canonical()


def copy_as_killed(folder, target):
    """What a process that is killed now would leave. By another process: a descriptor closed here drops locks."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    names = [path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm")]
    subprocess.run(["cp", *names, target], check=True)
