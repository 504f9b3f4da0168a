"""Runs a command as if it had been started on another machine: in the mount namespace of one of its processes.

python entering.py PID MODULE WORDS...

The network stays ours, so that what listens on our loopback can be reached. Standard library alone until then.
"""

import ctypes
import os
import runpy
import sys

_CLONE_NEWNS = 0x00020000


def main(pid, module, *words):
    """Enter, and be that command."""
    with open(f"/proc/{pid}/ns/mnt") as namespace:  # noqa: PTH123  # nothing else is to be imported
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns")
    os.chdir("/")
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
