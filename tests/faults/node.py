"""A node on a disk that fails when it is told to."""

import contextlib
import tempfile
from pathlib import Path

from agents import Launcher
from faults.injection import Faults
from nodes import Node

__all__ = ["faulty_node"]


@contextlib.contextmanager
def faulty_node(manifests, *, dir=None, **options):  # noqa: A002  # as tempfile has it
    """A node, not started, whose `disk_control` makes its disk fail. Its folder is made below `dir`."""
    with (
        tempfile.TemporaryDirectory(prefix="al-", dir=dir) as folder,
        Faults(Path(folder, "disk")) as faults,
        Launcher(faults.environment(), modules=["allotment.net.namespaces"]) as launcher,
        Node(launcher, manifests, folder=folder, **options) as node,
    ):
        node.disk_control = faults.control
        yield node
