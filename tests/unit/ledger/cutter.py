"""Opens a ledger with one file cut off at each of the bytes named on standard input; a program, for test_integrity.

    cutter.py FOLDER NAME < cuts

Says for each cut whether what opened is `whole`, `partial`, or refused as `damaged`. A refused ledger stays open in
the process that met it (it must not be checkpointed), so the work is done in child processes, some cuts in each.
"""

import asyncio
import os
import shutil
import sys
from pathlib import Path

from allotment.addressing.book import BookState
from allotment.addressing.errors import LedgerDamaged
from allotment.ledger import Ledger, LedgerReader

SHARE = 100


def verdict(folder, whole):
    async def look():
        try:
            ledger = Ledger.open(folder, boot="b", snapshot=BookState, ballast_bytes=0)
        except LedgerDamaged:
            return "damaged"
        state, objects = ledger.load().canonical(), ledger.objects()
        await ledger.close()
        return "whole" if (state, objects) == whole else "partial"

    return asyncio.run(look())


def work(origin, name, cuts):
    with LedgerReader(origin) as reader:
        content = reader.content()
    whole = content.book.canonical(), content.objects
    folder = origin.with_name(f"cut-{os.getpid()}")
    for cut in cuts:
        shutil.copytree(origin, folder)
        os.truncate(folder / name, cut)
        print(cut, verdict(folder, whole))
        shutil.rmtree(folder)
    sys.stdout.flush()


def main():
    origin, name = Path(sys.argv[1]), sys.argv[2]
    cuts = [int(line) for line in sys.stdin.read().split()]
    for start in range(0, len(cuts), SHARE):
        child = os.fork()
        if child == 0:
            work(origin, name, cuts[start : start + SHARE])
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"a child ended with {status}")


if __name__ == "__main__":
    main()
