"""Where lives of an agent are played that end at any one change of the disk."""

import contextlib
import shutil
import tempfile
from pathlib import Path

from agents import Launcher
from faults.injection import CHANGES, Faults

__all__ = ["Died", "DiskStage"]


class Died(Exception):  # noqa: N818  # no error: it is what was to happen
    """The agent was killed, as it was to be."""


class DiskStage:
    """A home for one agent after the other, whose changes of the disk are counted and cut short; a context manager.

    For those who derive from it: `_home` is the folder of the life that is played, `_folder` has room beside it,
    `_launcher` starts agents whose disk `_control` has in hand. They say what a life is: `_life`, a context manager, of
    the kind that `which` says where there are several. It lives until it is interrupted, `judge_disk` looks at what
    that has left, and `finish` starts again and goes on to the end.
    """

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._folder = Path(tempfile.mkdtemp(prefix="al-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, self._folder)
            self._home = self._folder / "home"
            faults = stack.enter_context(Faults(self._home / "disk"))
            self._control = faults.control
            self._launcher = stack.enter_context(Launcher(faults.environment()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def count(self, *which):
        """How many changes of the disk a whole one makes; it varies a little with what shares a transaction."""
        with self._life(*which) as life:
            self._control.count(CHANGES)
            life.live()
            seen = self._control.seen
            life.judge_disk()
            life.finish()
            return seen

    def play(self, point, *which, half):
        """One that is interrupted at that change of the disk; False when it was over before."""
        with self._life(*which) as life:
            self._control.arm(CHANGES, first=point, half=half)
            died = False
            try:
                life.live()
            except Died:
                died = True
            self._control.disarm()
            life.judge_disk()
            life.finish()
            return died
