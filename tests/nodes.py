"""A standalone agent as a runtime and a person meet it: called, asked and edited from outside, never looked into.

    with Launcher() as launcher, Node(launcher, {"blue.yaml": network()}) as node:
        node.start()
        node.give("c1")

Every waiting here is for a condition, with a limit (`until`).
"""

import json
import os
import time
from dataclasses import dataclass, field

import msgspec
import yaml

from agents import PATIENCE, Agent, conf, environment, now
from allotment.addressing.errors import AllotmentError
from allotment.cni.client import Client
from allotment.node.inquiries.reports import HistoryReport, StatusReport

__all__ = ["Answer", "Node", "allocation", "cni_cache_entry", "manifest", "until"]

_PAUSE = 0.01


@dataclass(frozen=True)
class Answer:
    """What a CNI call came to. `code` is 0 for a success."""

    code: int
    message: str = ""
    addresses: tuple = ()
    body: dict = field(default_factory=dict)
    flags: int = 0

    @property
    def ok(self):
        return self.code == 0


def answer(exit_code, output, flags=0):
    """The Answer that this output and exit code are."""
    body = json.loads(output) if output else {}
    if exit_code or "code" in body:
        return Answer(body["code"], body["msg"], body=body, flags=flags)
    return Answer(0, addresses=tuple(entry["address"] for entry in body.get("ips", ())), body=body, flags=flags)


class Node(Agent):
    """An agent with its folders; `flags` come after the usual ones. `boot` makes a boot ID that can be changed."""

    def __init__(self, launcher, manifests=None, *, boot="", flags=(), **options):
        super().__init__(launcher, manifests=manifests or {}, flags=flags, **options)
        self.log_of_cli = self.folder / "cli.log"
        self.boot_file = self.folder / "boot_id"
        if boot:
            self.boot_file.write_text(boot + "\n")
            self._flags += ["--boot-id-file", self.boot_file]

    # -- as a runtime

    def call(self, verb, container="", *, of="blue", config=None, **env):
        """One CNI call over the socket, acknowledged. A variable that is None isn't set."""
        reply = Client(self.socket, timeout=PATIENCE).call(environment(verb, container, **env), self.conf(of, config))
        return answer(reply.exit_code, reply.body, reply.flags)

    def call_or_none(self, verb, container="", **options):
        """The same of an agent that may not be there."""
        try:
            return self.call(verb, container, **options)
        except AllotmentError:
            return None

    def run(self, verb, container="", *, of="blue", config=None, timeout_ms=None, **env):
        """One CNI call through the shim, as a runtime makes it."""
        return self.finish(self.begin(verb, container, of=of, config=config, timeout_ms=timeout_ms, **env))

    def begin(self, verb, container="", *, of="blue", config=None, timeout_ms=None, **env):
        """Start the shim and hand it all it wants; `finish` waits for it."""
        return self.shim(verb, container, body=self.conf(of, config), timeout_ms=timeout_ms, **env)

    @staticmethod
    def finish(process):
        """The Answer of a shim, once it has ended."""
        output, _ = process.communicate(timeout=PATIENCE)
        return answer(process.returncode, output)

    @staticmethod
    def conf(of, config=None):
        """A network configuration; `config` overrides what is in it, and `{}` replaces nothing."""
        if isinstance(config, bytes):
            return config
        more = dict(config or {})
        ipam = {"type": "allotment", **({"network": of} if "name" in more else {}), **more.pop("ipam", {})}
        return conf(more.pop("name", of), version=more.pop("cniVersion", "1.1.0"), **{"ipam": ipam, **more})

    def give(self, container, **options):
        """ADD, which must succeed; the addresses alone, IPv4 first."""
        got = self.call("ADD", container, **options)
        assert got.ok, got
        return tuple(address.split("/")[0] for address in got.addresses)

    def free(self, container, **options):
        """DEL, which must succeed."""
        got = self.call("DEL", container, **options)
        assert got.ok, got

    def refuse(self, container, **options):
        """ADD, which must be refused."""
        got = self.call("ADD", container, **options)
        assert not got.ok, got
        return got

    def collect(self, *valid, of="blue", **options):
        """CNI GC with these containers as the valid ones."""
        listed = [{"containerID": container, "ifname": "eth0"} for container in valid]
        # Through the shim: when it was started is when its list was made, cut off to a tick of the kernel's.
        begun = now()
        until(lambda: now() > begun + 2 / os.sysconf("SC_CLK_TCK"))
        got = self.run("GC", of=of, config={"cni.dev/valid-attachments": listed}, **options)
        assert got.ok, got

    # -- as a person

    def cli(self, *words, code=None):
        """`allotment WORDS… -o json` for this node; the document. `code` is the exit code that is expected."""
        self.log_of_cli.write_bytes(b"")
        places = ["--socket", self.socket, "--state-dir", self.state, "--node", self._node]
        process = self._launcher.start([*words, "-o", "json", *places], log=self.log_of_cli)
        try:
            ended = process.wait()
        finally:
            process.close()
        text = self.log_of_cli.read_text()
        assert code is None or ended == code, f"allotment {words} ended with {ended}: {text}"
        return json.loads(text)

    def status(self):
        """What `allotment status` is told."""
        return self._query("status", StatusReport)

    def status_or_none(self):
        """The same of an agent that may not answer yet."""
        try:
            return self.status()
        except AllotmentError:
            return None

    def network(self, name="blue"):
        """What the status says of one network; None when it says nothing."""
        return next((found for found in self.status().networks if found.network == name), None)

    def problems(self):
        """(file, line, message) of what is wrong with the manifests."""
        return [(found.file, found.line, found.message) for found in self.status().source.problems]

    def history(self, **question):
        """The history's entries, the newest first."""
        return self._query("history", HistoryReport, limit=1000, **question).entries

    def _query(self, name, kind, **question):
        reply = Client(self.socket, timeout=PATIENCE).query(name, json.dumps(question).encode())
        return msgspec.json.decode(reply, type=kind)

    # -- as an operator with an editor

    def write(self, name, text):
        """Save a manifest as careful editors do: whole, by rename."""
        draft = self.manifests / f".{name}.draft"
        draft.write_text(text)
        draft.rename(self.manifests / name)

    def remove(self, name):
        (self.manifests / name).unlink()

    def record(self, name="blue.n1"):
        """What the state folder keeps of an Allocation; None when it keeps nothing."""
        try:
            return yaml.safe_load((self.state / "allocations" / f"{name}.yaml").read_text())
        except FileNotFoundError:
            return None

    def finalizers(self, name="blue.n1"):
        """The finalizers of the Allocation; None when there is none (any more)."""
        record = self.record(name)
        if record is None or record.get("released"):
            return None
        return record["allocation"]["metadata"].get("finalizers", [])

    # -- what becomes of it

    def until_ended_or_ready(self):
        """Wait until the agent has ended or serves, whichever comes first."""
        until(lambda: not self.running or self.call_or_none("STATUS"), "neither did the agent end nor does it serve")

    def wait_or_answer(self, shim):
        """Wait until the agent has died (True) or the shim has ended (False), whichever comes first."""
        until(lambda: not self.running or shim.poll() is not None, "neither did the agent die nor the call end")
        return not self.running

    def serving(self, network="blue"):
        """Wait until the network gives addresses."""
        until(lambda: self._serves(network), f"{network} is not served")

    def _serves(self, network):
        status = self.status()
        return not status.not_serving and any(
            found.network == network and found.phase == "serving" for found in status.networks
        )

    def reboot(self, boot="after"):
        """The machine restarts: the agent dies, the boot ID changes, and what is below /run is gone."""
        if self.running:
            self.kill()
        self.boot_file.write_text(boot + "\n")
        for entry in self.socket.parent.iterdir():
            if entry.name == "spool":
                for kept in entry.iterdir():
                    kept.unlink()
                entry.rmdir()
            else:
                entry.unlink()

    def said(self, text):
        """Whether the log has this in a line."""
        return text in self.log(1 << 22)


def manifest(kind, name, spec=None, **metadata):
    """A manifest as text (YAML is JSON's superset)."""
    return json.dumps(
        {
            "apiVersion": "allotment.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, **metadata},
            "spec": spec if spec is not None else {},
        },
        indent=1,
    )


def allocation(network="blue", *blocks, node="n1", name=None, closed=False, **metadata):
    """The file of an Allocation, with these blocks."""
    cut = [{"cidr": block, "state": "Confirmed"} for block in blocks]
    spec = {"network": network, "node": node, "type": "L3", "blocks": cut}
    if closed:
        spec["closed"] = True
    return manifest("Allocation", name or f"{network}.{node}", spec, **metadata)


def cni_cache_entry(folder, container, addresses, *, network="blue", netns="", interface="eth0"):
    """What libcni keeps of an ADD, written into its cache `folder`."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    pairs = [("K8S_POD_NAMESPACE", "test"), ("K8S_POD_NAME", container), ("K8S_POD_UID", f"uid-{container}")]
    entry = {
        "kind": "cniCacheV1",
        "containerId": container,
        "config": msgspec.to_builtins(conf(network)),
        "ifName": interface,
        "networkName": network,
        "netns": netns,
        "cniArgs": pairs,
        "result": {"cniVersion": "1.1.0", "ips": [{"address": address} for address in addresses]},
    }
    path = folder / "results" / f"{network}-{container}-{interface}"
    path.write_text(json.dumps(entry))
    return path


def until(probe, otherwise="it has not come true", *, limit=PATIENCE):
    """Ask until the answer is a true one, and return that."""
    end = now() + limit
    while True:
        found = probe()
        if found:
            return found
        assert now() < end, f"{otherwise} within {limit} s"
        time.sleep(_PAUSE)
