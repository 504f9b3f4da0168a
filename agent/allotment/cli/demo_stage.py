"""The stage of `allotment demo`: a node and its pods as network namespaces, a real agent, real plugins.

All of it lives in a temporary folder and in namespaces of its own, and is gone when the stage is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from allotment.addressing.errors import InternalError, TryAgain

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Answer", "Stage"]

_PLUGIN_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
_ALLOTMENT = (sys.executable, "-m", "allotment.cli")
_START_SECONDS = 20.0
_PATIENCE_MS = 700
"""How long the shim waits for an absent agent here; 10 to 20 s in earnest, which would make a dull demo."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a plugin printed, read as JSON, and its exit code."""

    code: int
    body: dict[str, Any]

    @property
    def addresses(self) -> list[str]:
        """The addresses of an ADD's result."""
        return [entry["address"] for entry in self.body.get("ips", [])]

    @property
    def message(self) -> str:
        """The message of an error."""
        return str(self.body.get("msg", ""))


class Stage:
    """Everything that the demo needs around it; a context manager that leaves nothing behind."""

    def __init__(self) -> None:
        self._cleanup = contextlib.ExitStack()
        self._agent: subprocess.Popen[bytes] | None = None
        self.node = f"demo-{os.getpid()}"
        self.namespaces: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _build(self) -> None:
        if os.geteuid() != 0:
            raise InternalError("the demo makes network namespaces, which only root may: run it as root")
        self.ptp_folder = _find("ptp", _PLUGIN_FOLDERS, "apt-get install containernetworking-plugins")
        for tool in ("ip", "nsenter", "ping"):
            if shutil.which(tool) is None:
                raise InternalError(f"the demo needs {tool!r}: apt-get install iproute2 util-linux iputils-ping")
        self.folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="allotment-demo-")))
        for name in ("manifests", "state", "bin", "run", "cni"):
            (self.folder / name).mkdir()
        self.socket = self.folder / "run" / "cni.sock"
        self._cleanup.callback(self.stop_agent, signal.SIGKILL)
        _run(*_ALLOTMENT, "install-cni", "--no-conf", "--bin-dir", str(self.folder / "bin"))
        self.add_namespace(self.node)
        self.inside(self.node, "ip", "link", "set", "lo", "up")

    # -- namespaces -----------------------------------------------------------------------------------------------

    def add_namespace(self, name: str) -> str:
        """Make a network namespace and return its path."""
        _run("ip", "netns", "add", name)
        self._cleanup.callback(_run, "ip", "netns", "delete", name, check=False)
        return f"/run/netns/{name}"

    def inside(self, namespace: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a namespace."""
        return _run("nsenter", f"--net=/run/netns/{namespace}", *command, check=check)

    # -- the agent ------------------------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start the agent and wait until it serves."""
        arguments = {
            "--manifests": "manifests",
            "--state-dir": "state",
            "--socket": "run/cni.sock",
            "--cni-cache-dir": "cni",
        }
        command = [*_ALLOTMENT, "agent", "--node", "demo", "--http", "off"]
        for flag, name in arguments.items():
            command += [flag, str(self.folder / name)]
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for _ in range(int(_START_SECONDS / 0.05)):
            if self._agent.poll() is not None:
                raise InternalError(f"the agent ended at once:\n{(self.folder / 'agent.log').read_text()[-2000:]}")
            if self.plugin("STATUS", "blue", "").code == 0:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agent.wait(0.05)
        raise TryAgain(f"the agent did not serve within {_START_SECONDS:g} s; its log is {self.folder / 'agent.log'}")

    def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the agent with a signal and wait for its end."""
        if self._agent is not None:
            self._agent.send_signal(number)
            self._agent.wait()
            self._agent = None

    def ask(self, *command: str) -> str:
        """Run `allotment …` against this agent and return what it prints."""
        places = ["--socket", str(self.socket), "--state-dir", str(self.folder / "state")]
        done = subprocess.run(
            [*_ALLOTMENT, command[0], *places, *command[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        return (done.stdout or done.stderr).rstrip()

    # -- plugins --------------------------------------------------------------------------------------------------

    def attach(self, verb: str, pod: str, *, version: str = "1.0.0", prev: dict[str, Any] | None = None) -> Answer:
        """Call the reference `ptp` plugin for a pod, in the node's namespace, as a runtime would."""
        conf: dict[str, Any] = {
            "cniVersion": version,
            "name": "blue",
            "type": "ptp",
            "ipam": {"type": "allotment", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
        }
        if prev is not None:
            conf["prevResult"] = prev
        command = ["nsenter", f"--net=/run/netns/{self.node}", str(self.ptp_folder / "ptp")]
        return self._call(command, verb, conf, self._environment(verb, pod))

    def plugin(self, verb: str, network: str, pod: str) -> Answer:
        """Call our own binary as the IPAM plugin, without any main plugin around it."""
        version = "1.1.0" if verb == "STATUS" else "1.0.0"
        conf = {"cniVersion": version, "name": network, "type": "ptp", "ipam": {"type": "allotment"}}
        command = [str(self.folder / "bin" / "allotment")]
        return self._call(command, verb, conf, self._environment(verb, pod))

    def begin(self, verb: str, network: str, pod: str) -> subprocess.Popen[bytes]:
        """As `plugin`, without waiting for the answer."""
        conf = {"cniVersion": "1.0.0", "name": network, "type": "ptp", "ipam": {"type": "allotment"}}
        process = subprocess.Popen(
            [str(self.folder / "bin" / "allotment")],
            env={**self._environment(verb, pod), "ALLOTMENT_TIMEOUT_MS": "20000"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None  # noqa: S101  # asked for above
        process.stdin.write(json.dumps(conf).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def _environment(self, verb: str, pod: str) -> dict[str, str]:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "CNI_COMMAND": verb,
            "CNI_PATH": f"{self.folder / 'bin'}:{self.ptp_folder}",
            "ALLOTMENT_SOCKET": str(self.socket),
            "ALLOTMENT_TIMEOUT_MS": str(_PATIENCE_MS),
        }
        if pod:
            environment |= {
                "CNI_CONTAINERID": f"{pod}-sandbox",
                "CNI_NETNS": f"/run/netns/{self.node}-{pod}",
                "CNI_IFNAME": "eth0",
                "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME={pod};K8S_POD_UID=uid-{pod}",
            }
        return environment

    @staticmethod
    def _call(command: list[str], verb: str, conf: dict[str, Any], environment: dict[str, str]) -> Answer:
        done = subprocess.run(
            command, env=environment, input=json.dumps(conf).encode(), capture_output=True, check=False
        )
        body = json.loads(done.stdout) if done.stdout.strip() else {}
        if done.returncode and not body:
            raise InternalError(f"{command[-1]} {verb} ended with {done.returncode}: {done.stderr.decode()}")
        return Answer(done.returncode, body)


def _find(name: str, folders: tuple[str, ...], remedy: str) -> Path:
    for folder in folders:
        if os.access(f"{folder}/{name}", os.X_OK):
            return Path(folder)
    raise InternalError(f"the reference plugin {name!r} is not in {', '.join(folders)}: {remedy}")


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise InternalError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done
