"""What of ours is on a node, whether it may go, and its removal.

The order is that of an installation, backwards: the configuration, so that no runtime calls the plugin any more; the
plugin; spool and socket; the state, and with it the lock that kept an agent from starting meanwhile. Only names that we
give are removed, so that a folder named by mistake loses nothing of anybody else's; a folder goes when it is empty. One
that is a mount point stays: the file system in it, and the unit or fstab that mounts it, are the administrator's.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError, ConfigError, StateFolderHeld, TryAgain
from allotment.cli import Exit
from allotment.cli.conflist import is_ours
from allotment.cli.install import PLUGIN_NAME, is_shim, remove_configuration, remove_plugin
from allotment.ledger import StateLock
from allotment.node.inquiries.describe import lease_report
from allotment.node.inquiries.offline import Offline
from allotment.node.inquiries.reports import LeasesQuery
from allotment.node.orphans.evidence import namespace_gone
from allotment.node.spool import SUFFIX, read_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from allotment.node.inquiries.reports import LeaseReport
    from allotment.node.settings import Settings
    from allotment.observe.clock import Clock

__all__ = ["Node", "still_held"]

_STATE: Final = ("ledger.*", "ledger-*.set-aside", "allocations", "manifests.json*", "agent.lock")
_LOCK: Final = "agent.lock"
_SPOOL: Final = "spool"
_MADE_BY_MKFS: Final = "lost+found"
_SHOWN: Final = 5
_UNIX_SOCKETS: Final = Path("/proc/net/unix")
_LISTENS: Final = 1 << 16  # __SO_ACCEPTCON among the flags there

Ended = tuple[str, str, str, float]
"""A DEL that was kept: container and interface, and the boot and second before which it was given."""


def still_held(
    leases: Iterable[LeaseReport], boot: str, ended: Iterable[Ended], gone: Callable[[str], bool | None]
) -> tuple[LeaseReport, ...]:
    """The pods' leases that somebody may still use: of this boot, not ended by a kept DEL, the namespace not gone."""
    kept = {(container, interface): seconds for container, interface, of, seconds in ended if of == boot}
    return tuple(
        lease
        for lease in leases
        if lease.kind == "pod"
        and lease.boot == boot
        and not lease.seconds < kept.get((lease.container, lease.interface), 0.0)
        and gone(lease.netns) is not True
    )


class Node:
    """This node. `clean` says how it went, once `remove` has returned."""

    def __init__(self, settings: Settings, clock: Clock, bin_dir: Path, conf_dir: Path) -> None:
        self._settings = settings
        self._clock = clock
        self._bin = bin_dir
        self._conf = conf_dir
        self._found = False
        self._left: list[Path] = []

    @property
    def clean(self) -> bool:
        """Whether nothing of anybody else's lay among ours; true where nothing was ours to begin with."""
        return not (self._found and self._left)

    def show(self) -> Exit:
        """Say what `remove` would do."""
        found = self._ours()
        for path in found:
            print(f"would remove: {path}")
        if not found:
            print("there is nothing of ours here")
            return Exit.OK
        in_the_way = self._listening()
        try:
            in_the_way = in_the_way or _sentence(self._held())
        except AllotmentError as error:
            in_the_way = in_the_way or _unknown(error)
        if in_the_way:
            print(f"not yet: {in_the_way}")
        print("nothing was removed; --yes removes it")
        return Exit.PROBLEM if in_the_way else Exit.OK

    def remove(self, *, force: bool) -> None:
        """Remove all of it, if nobody needs it any more (or `force`), and say what went.

        Raises:
            TryAgain: an agent runs, systemd listens for one, or pods have addresses.
            ConfigError: a file is in the way that can't be judged.
        """
        self._found = self._found or bool(self._ours())  # before the lock's file is there, and once for all attempts
        with self._alone() as folder:
            if listening := self._listening():
                raise TryAgain(listening)
            if not force:
                self._refuse_if_held()
            for path in _files(self._conf, "*.conflist"):
                if is_ours(_content(path)):
                    remove_configuration(self._conf, path.name)
            remove_plugin(self._bin)
            self._left = self._clear(self._settings.socket.parent, (self._settings.socket.name, _SPOOL))
            if folder is not None:
                self._left += self._clear(folder, _STATE)
        for path in self._left:
            print(f"left alone: {path} (not ours)")

    # -- what is there

    def _ours(self) -> list[Path]:
        return [*self._installed(), *self._kept()]

    def _installed(self) -> Iterator[Path]:
        yield from (path for path in _files(self._conf, "*.conflist") if is_ours(_content(path)))
        yield from (path for path in _files(self._bin, PLUGIN_NAME) if is_shim(_content(path)))

    def _kept(self) -> Iterator[Path]:
        run = self._settings.socket.parent
        yield from (path for name in (self._settings.socket.name, _SPOOL) for path in _files(run, name))
        yield from (path for name in _STATE for path in _files(self._settings.state_dir, name))

    # -- whether it may go

    @contextlib.contextmanager
    def _alone(self) -> Iterator[Path | None]:
        """With the state folder's lock, if there is the folder: no agent runs, and none starts meanwhile."""
        folder = self._settings.state_dir
        if not folder.is_dir():
            yield None
            return
        try:
            lock = StateLock.take(folder, node=self._settings.node, clock=self._clock)
        except StateFolderHeld as error:
            raise TryAgain(
                "the agent still runs; stop it first: `systemctl disable --now allotment.socket allotment.service`, or "
                f"in a cluster delete its DaemonSet ({error.message})"
            ) from error
        try:
            yield folder
        finally:
            lock.release()

    def _listening(self) -> str:
        """What to say where somebody listens at the socket: systemd would start the agent at the next call."""
        path = str(self._settings.socket)
        with contextlib.suppress(OSError):
            for line in _UNIX_SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines():
                fields = line.split(maxsplit=7)
                if len(fields) == 8 and fields[7] == path and int(fields[3], 16) & _LISTENS:
                    return f"somebody listens at {path}; under systemd: `systemctl disable --now allotment.socket`"
        return ""

    def _refuse_if_held(self) -> None:
        try:
            held = self._held()
        except AllotmentError as error:
            raise TryAgain(_unknown(error)) from error
        if held:
            raise TryAgain(_sentence(held))

    def _held(self) -> tuple[LeaseReport, ...]:
        folder = self._settings.state_dir
        if not _files(folder, "ledger.*"):
            return ()
        ledger = Offline(self._settings, self._clock)
        try:
            leases = [lease_report(lease) for lease in ledger.inquiry.leases(LeasesQuery())]
        finally:
            ledger.close()
        return still_held(leases, self._clock.boot, self._ended(), namespace_gone)

    def _ended(self) -> Iterator[Ended]:
        for path in _files(self._settings.spool_dir, f"*{SUFFIX}"):
            with contextlib.suppress(OSError, AllotmentError):  # nobody's DEL: it ends nothing
                entry, request = read_entry(path)
                yield request.container_id, request.interface, entry.boot, entry.seconds

    # -- its removal

    def _clear(self, folder: Path, names: tuple[str, ...]) -> list[Path]:
        """Remove what has one of these names, the lock's file last, and the folder; what keeps it from going."""
        ours = [path for name in names if name != _LOCK for path in _files(folder, name)]
        try:
            for path in [*ours, *_files(folder, _LOCK)]:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                print(f"removed: {path}")
            return _take_away(folder) if folder.is_dir() else []
        except OSError as error:
            raise TryAgain(f"{error.filename or folder} can't be removed: {error.strerror}") from error


def _take_away(folder: Path) -> list[Path]:
    """Remove a folder if it is empty and no mount point; what lies in it otherwise. Raises OSError."""
    left = sorted(folder.iterdir())
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno == errno.EBUSY:  # a mount point, of a bind as well; rmdir(2) says so before ENOTEMPTY
            print(f"left alone: {folder} (a mount point; unmount it, if it was made for this)")
            return [path for path in left if path.name != _MADE_BY_MKFS]
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return left
    print(f"removed: {folder}")
    return []


def _files(folder: Path, pattern: str) -> list[Path]:
    """What in a folder has such a name; nothing where there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if fnmatchcase(path.name, pattern))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"the folder {folder} can't be read: {error.strerror}") from error


def _content(path: Path) -> bytes:
    """A file's bytes; none of what is no regular file, which is not ours then."""
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error


def _sentence(held: tuple[LeaseReport, ...]) -> str:
    """Which pods have addresses, and what to do; empty where none has."""
    if not held:
        return ""
    names = sorted({f"{lease.pod_namespace}/{lease.pod}" if lease.pod else lease.container for lease in held})
    if len(names) == 1:
        return (
            f"1 pod here has an address: {names[0]}; delete it first, or say --force: it keeps its network then, and "
            "another plugin has to end it"
        )
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"{len(names)} pods here have addresses: {', '.join(names[:_SHOWN])}{more}; delete them first, or say --force: "
        "they keep their networks then, and another plugin has to end them"
    )


def _unknown(error: AllotmentError) -> str:
    return f"which pods have addresses can't be told ({error.message}); see that none has, and say --force"
