"""One folder for all that a run of the tests makes, removed with it whatever became of those who made it.

Tests remove what they have made. Only who is ended in the middle of one can't: with several workers each is given
seconds to end, which is less than a cluster takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["begin", "sweep"]


def begin() -> Path:
    """Have whatever is temporary, of this process and those that it starts, be made in a folder; its path."""
    # What pytest keeps of tests that failed stays where it always is.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="al-run-"))
    folder.chmod(0o755)  # some tests are about other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def sweep(folder: Path) -> None:
    """Remove the folder, what is mounted below it, and the control groups of clusters that were made there."""
    # Late, since every run of the tests begins here, and hardly any has a cluster.
    from cluster.node import control_group_trees, remove_control_group

    below = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed([path for path in below if path.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False)
    for made in folder.glob("al-cluster-*"):
        for name in {group.name for tree in control_group_trees() for group in tree.glob(f"{made.name}-*")}:
            remove_control_group(name)
    shutil.rmtree(folder, ignore_errors=True)
