"""A machine that systemd runs, for tests of our units: a manager as process 1 of namespaces of its own.

Mounts, network, processes, host name and control groups are the machine's, and all is gone when it ends. Its only
units are ours, as they stand in systemd/, and the bare targets that they name; so nothing of the distribution's is
started, and no setting of the kernel's is touched. What the units say of their sandbox is true here, as on a host.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Self

from agents import shim_binary
from nodes import until

__all__ = ["SystemdMachine"]

ROOT = Path(__file__).resolve().parents[1]
_SYSTEMD = "/lib/systemd/systemd"
_TARGETS = ("sysinit", "basic", "sockets", "multi-user", "shutdown", "umount", "network", "local-fs", "start")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")

_SET_UP = """\
set -e
mount --make-rprivate /
echo $$ >"$GROUP/cgroup.procs"
exec unshare --cgroup bash -ec '
    mount -t tmpfs -o mode=755 run /run
    mkdir -p /run/etc /run/netns
    cp -a /etc/. /run/etc
    rm -rf /run/etc/systemd /run/etc/allotment
    mount --bind /run/etc /etc
    mount -t tmpfs -o mode=755 lib /var/lib
    mkdir -p /run/program/site /run/program/source /run/program/python
    mount --bind "$PYTHON_HOME" /run/program/python
    mount --bind "$SITE" /run/program/site
    mount --bind "$SOURCE" /run/program/source
    mount -t tmpfs -o mode=755 opt /opt
    mkdir -p /opt/allotment/bin /opt/cni/bin
    cp "$SHIM" /opt/cni/bin/allotment
    printf "%s\\n" "#!/bin/sh" "export PYTHONPATH=/run/program/source:/run/program/site" \\
        "export PYTHONHOME=/run/program/python LD_LIBRARY_PATH=/run/program/python/lib PYTHONDONTWRITEBYTECODE=1" \\
        "exec /run/program/python/bin/$PYTHON -m allotment.cli \\"\\$@\\"" >/opt/allotment/bin/allotment
    chmod 755 /opt/allotment/bin/allotment
    mkdir -p /etc/systemd/system/allotment.service.d
    for target in $TARGETS; do
        printf "[Unit]\\nDefaultDependencies=no\\n" >/etc/systemd/system/$target.target
    done
    cp "$UNITS"/allotment.service "$UNITS"/allotment.socket /etc/systemd/system/
    printf "[Service]\\nStandardOutput=append:/run/agent.log\\nStandardError=append:/run/agent.log\\n" \\
        >/etc/systemd/system/allotment.service.d/log.conf
    umount --lazy /sys/fs/cgroup
    if [ "$UNIFIED" ]; then
        mount -t cgroup2 group /sys/fs/cgroup
    else
        mount -t tmpfs groups /sys/fs/cgroup
        mkdir /sys/fs/cgroup/systemd
        mount -t cgroup -o none,name=systemd systemd /sys/fs/cgroup/systemd
    fi
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    ip link set lo up
    mount -t tmpfs -o mode=1777 tmp /tmp
    mount -t tmpfs -o mode=1777 tmp /var/tmp
    exec env -i container=test LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
        SYSTEMD_UNIT_PATH=/etc/systemd/system SYSTEMD_LOG_TARGET=console \\
        "$SYSTEMD" --system --unit=start.target --show-status=no
'
"""


class SystemdMachine:
    """The machine; a context manager. Commands are run in it with `run`."""

    def __init__(self) -> None:
        self._unshared: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self.log = Path()

    def __enter__(self) -> Self:
        assert Path(_SYSTEMD).exists(), f"{_SYSTEMD} is missing; `make packages` installs it"
        with contextlib.ExitStack() as ends:
            folder = Path(tempfile.mkdtemp(prefix="al-systemd-"))
            ends.callback(shutil.rmtree, folder)
            unified = (_CONTROL_GROUPS / "cgroup.controllers").exists()
            group = (_CONTROL_GROUPS if unified else _CONTROL_GROUPS / "systemd") / folder.name
            group.mkdir()
            ends.callback(_remove_group, group)
            self.log = folder / "systemd.log"
            log = ends.enter_context(self.log.open("wb"))
            self._unshared = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child"),
                    *("--mount-proc", "bash", "-c", _SET_UP),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "GROUP": str(group),
                    "PYTHON": Path(sys.executable).resolve().name,
                    # It may lie in somebody's home, which the agent doesn't see.
                    "PYTHON_HOME": sys.base_prefix,
                    "SHIM": str(shim_binary()),
                    "SITE": sysconfig.get_path("platlib"),
                    "SOURCE": str(ROOT / "agent"),
                    "SYSTEMD": _SYSTEMD,
                    "TARGETS": " ".join(_TARGETS),
                    "UNIFIED": "1" if unified else "",
                    "UNITS": str(ROOT / "systemd"),
                },
            )
            ends.callback(self._end)
            until(self._running, "systemd does not run")
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def run(self, command: str, *, code: int | None = 0, **options: object) -> str:
        """Run a shell's command in the machine; what it prints. `code` is what it exits with, None: whatever."""
        ended = self.begin(command, **options)
        said, _ = ended.communicate(timeout=120)
        assert code in (None, ended.returncode), f"{command!r} exits {ended.returncode}: {said}\n{self.said()}"
        return said

    def begin(self, command: str, **options: object) -> subprocess.Popen[str]:
        """The same without waiting."""
        inside = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup"]
        return subprocess.Popen(
            [*inside, "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": "/opt/allotment/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NO_COLOR": "1", "LANG": "C.UTF-8"},
            **options,  # type: ignore[call-overload]
        )

    def write(self, path: str, content: str) -> None:
        """A file of the machine's."""
        self.run(f"mkdir -p {shlex.quote(os.path.dirname(path))}; printf %s {shlex.quote(content)} >{path}")  # noqa: PTH120  # of another machine

    def shows(self, unit: str, name: str) -> str:
        """A property of a unit, as systemd has it."""
        return self.run(f"systemctl show {unit} --property={name} --value").strip()

    def said(self) -> str:
        """What systemd and the agent have said last."""
        agent = self.begin("tail -c 3000 /run/agent.log").communicate(timeout=60)[0]
        return f"{self.log.read_text(errors='replace')[-3000:]}\n{agent}"

    def _running(self) -> bool:
        assert self._unshared is not None
        assert self._unshared.poll() is None, self.log.read_text(errors="replace")
        children = Path(f"/proc/{self._unshared.pid}/task/{self._unshared.pid}/children").read_text().split()
        if not children:
            return False
        self._pid = int(children[0])
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{self._pid}/comm").read_text().strip() == "systemd":
                return "start.target" in self.run("systemctl list-units --no-legend --state=active", code=None)
        return False

    def _end(self) -> None:
        assert self._unshared is not None
        with contextlib.suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, 9)  # process 1: the kernel ends all others of its namespace
        self._unshared.kill()
        self._unshared.wait()


def _remove_group(group: Path) -> None:
    """Once the last process in it is gone, which the kernel says a moment later."""

    def removed() -> bool:
        try:
            for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                path.rmdir()
            group.rmdir()
        except OSError:
            return False
        return True

    until(removed, f"{group} can't be removed")
