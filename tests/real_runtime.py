"""A real container runtime with namespaces, folders and a socket of its own; nothing is left when its test has ended.

It runs as the first process of a PID namespace, so that all that it starts ends with it, in a network and a mount
namespace of its own with an empty /run. Its CNI plugin is a script that gives each sandbox the addresses it is told.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from agents import PATIENCE
from allotment.cri.messages import varint
from allotment.cri.runtime import Runtime
from nodes import until

__all__ = ["NODE", "POD", "RealRuntime"]

POD, NODE = 0, 2  # NamespaceMode
_SERVICE = "/runtime.v1.RuntimeService/"
_MOUNTS = "mkdir -p /var/lib/cni && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib/cni"
_PLUGIN = """#!/bin/sh
printf '%s %s %s\\n' "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_ARGS" >>"$0.log"
case "$CNI_COMMAND" in
VERSION) echo '{{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}}' ;;
ADD) cat <<END
{{"cniVersion": "1.0.0", "interfaces": [{{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}}], "ips": {ips}}}
END
esac
"""


class RealRuntime:
    """A context manager; `runtime` asks it, and what a kubelet asks it for are methods.

    Its pods get what `give` says, unless `plugins` is a folder of CNI plugins: then `conf` is the configuration, and
    the plugins are called with `environment`.
    """

    def __init__(self, *, plugins=None, conf=None, environment=None):
        self._own_plugins = plugins is None
        self._conf = conf or {"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "given"}]}
        self._environment = environment or {}
        self.folder = Path(tempfile.mkdtemp(prefix="al-cri-"))
        self.log = self.folder / "log"
        self.runtime = Runtime(self.folder / "c.sock", timeout=PATIENCE)
        self.plugins = plugins or self.folder / "bin"
        self._cgroup = self.folder.name
        self._process = None

    def __enter__(self):
        try:
            if self._own_plugins:
                self.give("10.9.0.2/24", "fd09::2/64")
            (self.folder / "net.d").mkdir()
            (self.folder / "net.d/10-test.conflist").write_text(json.dumps(self._conf))
            self.prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.kill()
        # What is mounted went with the mount namespace; the cgroups stay, without processes.
        for parent in Path("/sys/fs/cgroup").glob(f"**/{self._cgroup}"):
            for group in sorted(parent.rglob("*"), reverse=True):
                if group.is_dir():
                    group.rmdir()
            parent.rmdir()
        shutil.rmtree(self.folder)

    # -- what each runtime says for itself

    def prepare(self):
        """Write the configuration, into `folder`."""
        raise NotImplementedError

    def command(self):
        """What the shell is to run in the namespaces, in the end by `exec`."""
        raise NotImplementedError

    def is_up(self):
        """Whether it answers."""
        raise NotImplementedError

    # -- its life

    def give(self, *addresses):
        """These are the addresses of sandboxes from here on."""
        self.plugins.mkdir(exist_ok=True)
        ips = json.dumps([{"address": address, "interface": 0} for address in addresses])
        for name in ("given", "loopback"):  # the second one is what containerd itself adds to each sandbox
            plugin = self.plugins / f".{name}"
            plugin.write_text(_PLUGIN.format(ips=ips if name == "given" else "[]"))
            plugin.chmod(0o755)
            plugin.rename(self.plugins / name)

    def asked(self):
        """What the plugin was called with: (verb, container ID, CNI_ARGS as a table)."""
        lines = [line.split(" ", 2) for line in (self.plugins / "given.log").read_text().splitlines()]
        return [
            (verb, container, dict(pair.split("=") for pair in args.split(";")))
            for verb, container, args in lines
            if verb != "VERSION"
        ]

    def start(self):
        """Start it (again); what ran in it before is gone."""
        with self.log.open("ab") as log:
            enter = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            self._process = subprocess.Popen(
                [*enter, "sh", "-c", f"{_MOUNTS} && {self.command()}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        until(self.is_up, self.log.read_text()[-2000:])

    @property
    def pid(self):
        """The first process of its namespaces, which `unshare` waits for; None once that has ended."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def kill(self):
        """End it and all that it runs."""
        if self._process is None:
            return
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._process = None

    # -- as a kubelet

    async def run(self, name, *, uid="", namespace="shop", attempt=0, network=POD):
        """RunPodSandbox; the new sandbox's ID."""
        options = _number(1, network) + _number(2, 1)  # PID namespaces of the containers' own
        linux = _bytes(1, f"/{self._cgroup}") + _bytes(2, _bytes(1, options))
        metadata = _bytes(1, name) + _bytes(2, uid or f"uid-{name}") + _bytes(3, namespace) + _number(4, attempt)
        config = _bytes(1, metadata) + _table(6, {"app": name}) + _table(7, {"note": f"of {name}"}) + _bytes(8, linux)
        answer = await self._ask("RunPodSandbox", _bytes(1, config))
        return answer[2:].decode()

    async def stop(self, sandbox):
        """StopPodSandbox: it is known afterwards, and not ready."""
        await self._ask("StopPodSandbox", _bytes(1, sandbox))

    async def remove(self, sandbox):
        """RemovePodSandbox: it isn't known any more."""
        await self._ask("RemovePodSandbox", _bytes(1, sandbox))

    async def _ask(self, method, message):
        async with self.runtime._connected() as connection:
            return await connection.ask(_SERVICE + method, message)


def _bytes(number, value):
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def _number(number, value):
    return varint(number << 3) + varint(value)


def _table(number, table):
    return b"".join(_bytes(number, _bytes(1, key) + _bytes(2, value)) for key, value in table.items())
