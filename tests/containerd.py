"""A real containerd with namespaces, folders and a socket of its own; nothing of it is left when its test has ended.

It runs as the first process of a PID namespace, so that its shims and pods end with it, in a network and a mount
namespace of its own with an empty /run. Its CNI plugin is a script that gives each sandbox the addresses it is told.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
from pathlib import Path

from agents import PATIENCE
from allotment.cri.messages import varint
from allotment.cri.runtime import Runtime
from nodes import until

__all__ = ["NODE", "Containerd", "is_there"]

POD, NODE = 0, 2  # NamespaceMode
_SERVICE = "/runtime.v1.RuntimeService/"
_PAUSE = "allotment.test/pause:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
_CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/bin"
    conf_dir = "{folder}/net.d"
"""
_PLUGIN = """#!/bin/sh
printf '%s %s %s\\n' "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_ARGS" >>"$0.log"
[ "$CNI_COMMAND" = ADD ] || exit 0
cat <<END
{{"cniVersion": "1.0.0", "interfaces": [{{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}}], "ips": {ips}}}
END
"""


def is_there():
    """Whether the programs are installed."""
    return all(map(shutil.which, ("containerd", "runc", "ctr", "cc", "unshare")))


class Containerd:
    """A context manager; `runtime` asks it."""

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="al-ctd-"))
        self.log = self.folder / "log"
        self.runtime = Runtime(self.folder / "c.sock")
        self._cgroup = self.folder.name
        self._process = None
        try:
            self.give("10.9.0.2/24", "fd09::2/64")
            (self.folder / "net.d").mkdir()
            conf = {"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "given"}]}
            (self.folder / "net.d/10-test.conflist").write_text(json.dumps(conf))
            (self.folder / "config.toml").write_text(_CONFIG.format(folder=self.folder, image=_PAUSE))
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

    def give(self, *addresses):
        """These are the addresses of sandboxes from here on."""
        (self.folder / "bin").mkdir(exist_ok=True)
        ips = json.dumps([{"address": address, "interface": 0} for address in addresses])
        for name in ("given", "loopback"):  # the second one is what containerd itself adds to each sandbox
            plugin = self.folder / "bin" / name
            plugin.write_text(_PLUGIN.format(ips=ips if name == "given" else "[]"))
            plugin.chmod(0o755)

    def asked(self):
        """What the plugin was called with: (verb, container ID, CNI_ARGS as a table)."""
        lines = [line.split(" ", 2) for line in (self.folder / "bin/given.log").read_text().splitlines()]
        return [(verb, container, dict(pair.split("=") for pair in args.split(";"))) for verb, container, args in lines]

    def start(self):
        """Start it (again); what ran in it before is gone."""
        command = f"mount -t tmpfs tmpfs /run && exec containerd --config {self.folder}/config.toml"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: self._ctr("version", check=False).returncode == 0, self.log.read_text()[-2000:])
        self._import_pause()

    def kill(self):
        """End it and all that it runs."""
        if self._process is None:
            return
        own = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        for child in own.read_text().split():  # the namespace's first process, which unshare then waits for
            os.kill(int(child), signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._process = None

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

    def _ctr(self, *words, check=True):
        command = ["ctr", "--address", str(self.runtime.socket), "--namespace", "k8s.io", *words]
        return subprocess.run(command, check=check, capture_output=True, timeout=PATIENCE)

    def _import_pause(self):
        source, program, image = (self.folder / name for name in ("pause.c", "pause", "pause.tar"))
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-static", "-Os", "-o", program, source], check=True)
        image.write_bytes(_image(program.read_bytes()))
        self._ctr("images", "import", str(image))


def _image(program):
    """An OCI layout (opencontainers/image-spec, image-layout.md) of one layer that holds `program` as /pause."""
    layer = _tar({"pause": program}, mode=0o755)
    blobs = {}

    def kept(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    described = kept(layer, "layer.v1.tar")
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [described["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": kept(json.dumps(config).encode(), "config.v1+json"),
        "layers": [described],
    }
    top = kept(json.dumps(manifest).encode(), "manifest.v1+json")
    index = {"schemaVersion": 2, "manifests": [{**top, "annotations": {"io.containerd.image.name": _PAUSE}}]}
    return _tar({"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode(), **blobs})


def _tar(files, mode=0o644):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def _bytes(number, value):
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def _number(number, value):
    return varint(number << 3) + varint(value)


def _table(number, table):
    return b"".join(_bytes(number, _bytes(1, key) + _bytes(2, value)) for key, value in table.items())
