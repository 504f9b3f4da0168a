"""A machine to try our pages on: a root shell in namespaces of its own, with the paths that the pages speak of.

Mounts, network, host name and processes are the stage's own: /etc, /run, /opt, /var/lib and /tmp can be written to,
and all is gone when the shell ends. `systemctl` and `journalctl` are played by `manager.py`, which starts the agent
as the units in systemd/ say, and `pod` makes and ends pods as a container runtime does (`pod.py`).
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Self

from handbook.pages import ROOT

__all__ = ["Stage"]

HERE = Path(__file__).parent
NODE = "node-1"
_PATIENCE = 120.0  # seconds

_SET_UP = """\
veil() { # a folder that can be written to, with what the machine has in it
    mkdir -p /run/veil && mount -t tmpfs -o mode=755 veil /run/veil
    for one in "$1"/* ; do
        case "$one" in */cni|*/allotment) continue ;; esac # made anew; what the machine has there is not touched
        [ -e "$one" ] || continue
        if [ -d "$one" ]; then mkdir "/run/veil/${one##*/}" && mount --rbind "$one" "/run/veil/${one##*/}"
        else cp -a "$one" /run/veil/; fi
    done
    mount --move /run/veil "$1"
}
set -e
mount -t tmpfs -o mode=755 run /run
for folder in /opt /var/lib /srv; do veil "$folder"; done
mkdir /run/etc && cp -a /etc/. /run/etc && rm -rf /run/etc/cni /run/etc/allotment && mount --bind /run/etc /etc
mkdir -p /run/netns /opt/cni/bin /opt/allotment/bin /opt/stage /var/lib/allotment
hostname "$NODE"
ip link set lo up
cp "$PLUGINS"/{ptp,bridge,macvlan,portmap,loopback} /opt/cni/bin/
put() { printf '#!/bin/sh\\nexec "%s" %s "$@"\\n' "$PYTHON" "$2" >"$1"; chmod 755 "$1"; }
put /opt/allotment/bin/allotment "-m allotment.cli"
for name in pod systemctl journalctl; do put "/opt/stage/$name" "$HERE/$name.py"; done
command -v curl >/dev/null || put /opt/stage/curl "$HERE/curl.py" # not every machine has it
export PATH="/opt/allotment/bin:/opt/stage:/usr/sbin:/usr/bin:/sbin:/bin"
export NO_COLOR=1 LC_ALL=C.UTF-8
export CNI_PATH=/opt/cni/bin ALLOTMENT_TIMEOUT_MS=2000
node_is_up() { # what docs/guide/getting-started.md does, for the pages that begin where it ends
    mkdir -p /etc/systemd/system /etc/allotment/manifests
    cp "$SOURCE"/systemd/allotment.s* /etc/systemd/system/
    cp "$HERE/blue.yaml" /etc/allotment/manifests/
    systemctl enable --now allotment.socket allotment.service && allotment install-cni --network blue
}
set +e
"$PYTHON" "$HERE/manager.py" </dev/null >/run/manager.log 2>&1 &
until [ -S /run/manager.sock ]; do sleep 0.05; done
cd
"""


class Stage:
    """A shell; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shell: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        flags = ("--mount", "--net", "--uts", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
        environment = {
            "HERE": str(HERE),
            "HOME": str(self._folder),
            "NODE": NODE,
            "PATH": os.environ["PATH"],
            "PLUGINS": "/usr/lib/cni",
            "PYTHON": sys.executable,
            "SOURCE": str(ROOT),
        }
        self._shell = subprocess.Popen(
            ["unshare", *flags, "--propagation", "private", "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=environment,
        )
        try:
            printed, code = self.run(_SET_UP)
            assert code == 0, printed
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell is not None
        self._shell.kill()
        self._shell.communicate()

    def run(self, command: str, *, limit: float = _PATIENCE) -> tuple[str, int]:
        """Have the shell run this; what it printed, on both streams, and its exit code."""
        assert self._shell is not None
        assert self._shell.stdin is not None
        end = f"end-{uuid.uuid4()}"
        self._shell.stdin.write(f"{{ :\n{command}\n}} </dev/null 2>&1\nprintf '\\n%s %s\\n' {end} $?\n".encode())
        self._shell.stdin.flush()
        printed = self._read_to(end.encode(), limit, command)
        output, _, code = printed.decode(errors="replace").rpartition(f"\n{end} ")
        return output, int(code)

    def _read_to(self, end: bytes, limit: float, command: str) -> bytes:
        assert self._shell is not None
        assert self._shell.stdout is not None
        printed = b""
        while not (end in printed and printed.endswith(b"\n")):
            ready = select.select([self._shell.stdout], [], [], limit)[0]
            piece = os.read(self._shell.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                happened = "the shell ended" if ready else f"nothing more came in {limit:g} s"
                raise AssertionError(f"{command!r}: {happened}; so far: {printed.decode(errors='replace')}")
            printed += piece
        return printed
