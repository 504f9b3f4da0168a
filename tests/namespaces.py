"""Network namespaces of a test's own, in a folder of its own, with addresses in them; all go when it ends."""

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["Namespaces"]


class Namespaces:
    """A folder like /run/netns. `folder` may hold other things, too."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="al-ns-"))
        self._made = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for path in list(self._made):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.end(path)
        shutil.rmtree(self.folder)

    def make(self, *addresses, name="", interface="eth0"):
        """A namespace with these addresses (with their lengths) on an interface; its path."""
        path = self.folder / (name or f"ns-{len(list(self.folder.iterdir()))}")
        path.touch()
        commands = ["link set lo up"]
        if addresses:
            commands += [f"link add {interface} type bridge", f"link set {interface} up"]
            commands += [
                f"addr add {address} dev {interface}{' nodad' if ':' in address else ''}" for address in addresses
            ]
        # `unshare --net=FILE` mounts the new namespace at FILE, where it stays when the command has ended.
        subprocess.run(
            ["unshare", f"--net={path}", "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True
        )
        self._made.append(path)
        return path

    def end(self, path):
        """Unmount a namespace, which ends it, and remove its file; lazily, since somebody may be looking into it."""
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        self._made.remove(path)
        path.unlink()
