"""Puts a file in place so that a reader sees the old one or the new one, whole, whatever happens in between.

The new content is written to a temporary file in the same folder, made what it shall be (mode), synced, renamed over
the name, and the folder is synced. A process that runs the old file goes on with it. Whoever dies half-way leaves the
old file usable and a temporary one, which the next run removes. The folder itself is locked meanwhile, so that two
versions of us never write at once; there is no lock file, which could be renamed or forgotten.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import ConfigError, TryAgain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Folder", "opened"]

_PREFIX: Final = ".allotment-"
_SUFFIX: Final = ".tmp"  # runtimes read *.conf, *.conflist and *.json, so never this


class Folder:
    """A folder of files that we put in place; made by `opened`, which holds its lock."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def read(self, name: str) -> bytes | None:
        """The content of a file, None when there is none.

        Raises:
            ConfigError: it can't be read, or the name belongs to something that isn't a regular file.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise ConfigError(f"{self.path / name} can't be replaced: {what}; move it away") from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{self.path / name} can't be replaced: it is no regular file; move it away")
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(fd)

    def put(self, name: str, content: bytes, mode: int) -> bool:
        """Have `name` hold exactly `content` with this mode; returns whether anything had to be written.

        Raises:
            TryAgain: the disk is full, or gave an error; the name has its old content or, if only the folder could
                not be synced, the new.
            ConfigError: the name belongs to something that isn't a regular file.
        """
        try:
            self._clear()
            if self.read(name) == content and self._mode(name) == mode:
                os.fsync(self._fd)  # who put it there may have died before this
                return False
            temporary = f"{_PREFIX}{name}.{os.getpid()}{_SUFFIX}"
            try:
                self._write(temporary, content, mode)
                os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self._fd)
                raise
            os.fsync(self._fd)
        except OSError as error:
            raise TryAgain(f"{self.path / name} can't be put in place: {error.strerror}; try again") from error
        return True

    def remove(self, name: str) -> None:
        """Remove a file; that it isn't there is success.

        Raises:
            TryAgain: the file system refuses.
        """
        try:
            self._clear()
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
            os.fsync(self._fd)
        except OSError as error:
            raise TryAgain(f"{self.path / name} can't be removed: {error.strerror}") from error

    def _write(self, name: str, content: bytes, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _mode(self, name: str) -> int:
        return stat.S_IMODE(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)

    def _clear(self) -> None:
        """Remove what an earlier run left half-written: nobody else holds the lock, so nobody writes it now."""
        for name in os.listdir(self._fd):  # noqa: PTH208  # pathlib can't list by descriptor
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                os.unlink(name, dir_fd=self._fd)


@contextmanager
def opened(path: Path, *, create: bool = True) -> Iterator[Folder]:
    """Lock a folder (made, with its parents, if need be and `create`) and give access to its files.

    Raises:
        ConfigError: it can't be made or opened.
        TryAgain: another install has it locked, or it can't be.
    """
    try:
        if create:
            path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"the folder {path} can't be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TryAgain(f"another `allotment install-cni` is at work in {path}; try again") from error
        except OSError as error:
            raise TryAgain(f"{path} can't be locked: {error.strerror}") from error
        yield Folder(path, fd)
    finally:
        os.close(fd)
