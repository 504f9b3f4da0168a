"""DELs that the shim kept while nobody answered: replayed at start and whenever one appears.

An entry releases only what was leased before it was written, in the same boot. One of an earlier boot has nothing to
say any more: the leases of that boot ended with it. An entry that can't be read is put aside and told of, not lost;
one whose release can't be put on disk stays and is tried again. Whatever lies in the folder, and whatever the folder
has become, ends neither the agent nor a call: it is said in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING

from allotment.addressing.errors import AllotmentError, ConfigError, DecodeError, LedgerUnavailable
from allotment.addressing.lease import Cause, Moment
from allotment.cni.frames import SpoolEntry, decode_spool_entry
from allotment.cni.request import CniRequest, Verb, parse_request
from allotment.node.folder_watch import FolderWatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from allotment.addressing.lease import Lease
    from allotment.node.attaching.attachments import Attachments
    from allotment.observe.clock import Clock
    from allotment.observe.metrics import Metrics

__all__ = ["SUFFIX", "Spool", "read_entry"]

SUFFIX = ".del"
"""What the name of a complete entry ends with; the shim writes under another name first."""
_UNREADABLE = "unreadable"
_RETRY = 1.0
_LOOK_AGAIN = 30.0
_LARGEST = 2 << 20  # bytes; a frame is at most 1 MiB


def read_entry(path: Path) -> tuple[SpoolEntry, CniRequest]:
    """The kept DEL in the file at `path`. Never waits: what is no regular file isn't read.

    Raises:
        OSError: it can't be opened or read.
        AllotmentError: it holds no DEL that anybody kept.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123  # a pipe must not be waited for, which Path.open would
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DecodeError("it is no regular file")
        entry = decode_spool_entry(file.read(_LARGEST))
    request = parse_request(entry.env, entry.body)
    if request.verb is not Verb.DEL:
        raise DecodeError(f"it holds a call of {request.verb}, and only DEL is ever kept")
    return entry, request


class Spool:
    """The folder of kept DELs beside the socket."""

    def __init__(
        self, folder: Path, attachments: Attachments, clock: Clock, metrics: Metrics, log: FilteringBoundLogger
    ) -> None:
        self.folder = folder
        self._attachments = attachments
        self._clock = clock
        self._log = log
        self._replayed = {
            outcome: metrics.count("spool_replayed_total", outcome) for outcome in ("released", "nothing", _UNREADABLE)
        }
        self._waiting = 0
        self._told: set[str] = set()  # of what was said once, and is still so
        self._replaying = asyncio.Lock()
        metrics.read("spool_entries", lambda: (((), float(self._waiting)),))

    def prepare(self) -> None:
        """Make the folder, so that it can be watched.

        Raises:
            ConfigError: it can't be made.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the spool {self.folder} can't be made: {error.strerror}; make room for it") from error

    async def run(self) -> None:
        """Replay now, whenever something in the folder changes, and now and then what could not be replayed."""
        rung = asyncio.Event()
        with contextlib.ExitStack() as stack:
            watch = self._watch(stack, rung.set)
            while True:
                rung.clear()
                if watch is not None:
                    watch.renew()
                waiting = await self.replay()
                # What inotify can't see, and what waits for the ledger, is found by looking again.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY if waiting or watch is None else _LOOK_AGAIN):
                        await rung.wait()

    def _watch(self, stack: contextlib.ExitStack, ring: Callable[[], None]) -> FolderWatch | None:
        try:
            return stack.enter_context(FolderWatch(self.folder, ring))
        except OSError as error:
            self._log.warning("the spool can't be watched, and is looked at every second", error=str(error))
            return None

    async def settle(self) -> None:
        """Have every DEL that is kept by now take effect.

        Raises:
            LedgerUnavailable: one has to wait for the disk, and which leases it means is open until then.
        """
        if self._entries() and (waiting := await self.replay()):
            raise LedgerUnavailable(f"{waiting} DELs that were kept wait for the ledger; try again")

    async def replay(self) -> int:
        """Replay every entry, oldest first; returns how many could not be and are still there."""
        async with self._replaying:
            return await self._replay_all()

    async def _replay_all(self) -> int:
        try:
            entries = self._entries()
        except LedgerUnavailable as error:
            self._tell("listing", error.message)
            return 1
        self._told.discard("listing")
        self._told.intersection_update(entries)
        self._waiting = len(entries)
        for number, name in enumerate(entries):
            await self._clock.sleep(0)  # a quick disk makes nothing here wait, and there may be thousands
            try:
                await self._replay(self.folder / name)
            except LedgerUnavailable as error:
                self._waiting = len(entries) - number
                self._log.warning("kept DELs wait for the ledger", entries=self._waiting, error=error.message)
                return self._waiting
            self._waiting -= 1
        return 0

    def _entries(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(SUFFIX))  # noqa: PTH208  # names
        except FileNotFoundError:
            return []
        except OSError as error:  # not an empty one (I8): which leases still hold isn't known
            raise LedgerUnavailable(
                f"the spool {self.folder}, where DELs may be kept, can't be looked into: {error.strerror}; see to it"
            ) from error

    async def _replay(self, path: Path) -> None:
        try:
            entry, request = read_entry(path)
        except FileNotFoundError:
            return
        except (OSError, AllotmentError) as error:
            self._set_aside(path, error)
            return
        released: tuple[Lease, ...] = ()
        if entry.boot == self._clock.boot:
            before = Moment(entry.boot, entry.seconds)
            detail = f"kept in the spool as {path.name}"
            released = await self._attachments.delete(request, detail, before=before, cause=Cause.SPOOL)
        self._replayed["released" if released else "nothing"].inc()
        self._log.info(
            "replayed a kept DEL",
            entry=path.name,
            network=request.network,
            container=request.container_id,
            interface=request.interface,
            addresses=[str(lease.address) for lease in released],
        )
        self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # replayed again and again, it does nothing more: it means what was leased before it
            self._tell(path.name, f"the replayed DEL {path} can't be removed: {error.strerror}; remove it by hand")

    def _set_aside(self, path: Path, error: Exception) -> None:
        aside = self.folder / _UNREADABLE
        try:
            aside.mkdir(mode=0o700, exist_ok=True)
            path.rename(aside / path.name)
        except FileNotFoundError:
            return
        except OSError as failure:
            self._tell(
                path.name,
                f"{path} is no kept DEL ({error}), and can't be put into {aside}: {failure.strerror}; move it by hand",
            )
            return
        self._replayed[_UNREADABLE].inc()
        self._log.error(
            "a kept DEL can't be read and was set aside; the address it meant is held until its pod is found gone",
            entry=str(aside / path.name),
            error=str(error),
        )

    def _tell(self, subject: str, message: str) -> None:
        """Say it in the log, once for as long as it is so."""
        if subject not in self._told:
            self._told.add(subject)
            self._log.error("spool", problem=message)
