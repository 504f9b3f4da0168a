"""The replay of kept DELs as part of a loop that has other things to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agents import conf, environment
from allotment.addressing.book import LeaseBook
from allotment.addressing.lease import Moment
from allotment.cni.frames import encode_call, encode_spool_entry
from allotment.node.attaching.attachments import Attachments
from allotment.node.spool import Spool
from allotment.observe.metrics import Metrics
from allotment.testing.clock import ManualClock
from allotment.testing.store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = 200


async def test_others_have_their_turn_between_two_kept_dels(tmp_path: Path) -> None:
    """A quick disk makes a release wait for nothing, and a node that was away for long has kept thousands."""
    clock, book = ManualClock(boot="11111111-2222-3333-4444-555555555555"), LeaseBook("n1")
    book.load((), (), sequence=0, now=Moment(clock.boot, clock.seconds()))
    attachments = Attachments(book, MemoryStore(), clock, spawn=asyncio.create_task, add_wait=0.0)
    attachments.serve()
    spool = Spool(tmp_path / "spool", attachments, clock, Metrics("1"), structlog.get_logger())
    spool.prepare()
    for number in range(ENTRIES):
        request = encode_call(environment("DEL", f"c{number}"), conf())
        (spool.folder / f"{number}.del").write_bytes(encode_spool_entry(clock.boot, 1, request))
    replaying = asyncio.create_task(spool.replay())
    turns = 0
    while not replaying.done():
        turns += 1
        await clock.sleep(0)
    assert await replaying == 0
    assert turns >= ENTRIES
