"""The real agent as a process of its own, for tests: started, killed, replaced, asked.

    with Launcher() as launcher, Agent(launcher, manifests={"blue.yaml": text}) as agent:
        agent.start()
        agent.ask("ADD", "c1")
        agent.kill()

A launcher is one helper process that starts agents: by fork of a Python that has imported the agent already (a tenth
of a second instead of one, which matters to a test that does it hundreds of times), or with `fresh` by exec, exactly
as a person starts it. It hands over a listening socket as a service manager does (sd_listen_fds(3)). Launcher and
agents end with the test's process, however that ends.
"""

import contextlib
import ctypes
import importlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0
"""Seconds after which a test that waits for an agent has failed; a busy machine needs some of them."""
_RUNNER = ("-m", "allotment.cli")
_PR_SET_PDEATHSIG = 1
_LARGEST = 1 << 16


# -- in the test's process ---------------------------------------------------------------------------------------------


class Process:
    """A process that a launcher started."""

    def __init__(self, channel):
        self._channel = channel
        self._code = None
        channel.settimeout(PATIENCE)
        message, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
        self.pid = int(message)
        [self._pidfd] = descriptors  # unlike a number, it never means another process

    def send(self, number):
        """A signal; nothing happens if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    @property
    def running(self):
        return self.wait(0.0) is None

    def wait(self, limit=PATIENCE):
        """The exit code (negative: the signal) once it has ended, None if it has not within `limit` seconds."""
        if self._code is None and readable(limit, self._channel):
            self._code = int(self._channel.recv(64))
        return self._code

    def fileno(self):
        """Readable once the process has ended."""
        return self._channel.fileno()

    def close(self):
        """Kill it if it still runs."""
        self.send(signal.SIGKILL)
        self.wait()
        os.close(self._pidfd)
        self._channel.close()


class Launcher:
    """Starts processes that run `allotment …`; a context manager. `environment` is that of all of them.

    `modules` are imported once, beforehand, besides the agent.
    """

    def __init__(self, environment=None, *, modules=()):
        self._environment = environment or dict(os.environ)
        self._modules = modules

    def __enter__(self):
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is for the test alone, which then cleans up
                env=self._environment,
            )
        return self

    def __exit__(self, *_):
        self._control.close()
        self._process.wait(PATIENCE)

    def start(self, arguments, *, log, environment=None, listener=None, runner=None, descriptors=None):
        """Run `allotment ARGUMENTS`; its output is appended to `log`.

        `environment` is added to the launcher's own. `listener` is handed over as a listening socket. `descriptors`
        limits how many files the process may have open. `runner` is what makes a new Python run the command; without
        it the process is a fork.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": environment or {},
            "runner": runner,
            "descriptors": descriptors,
        }
        with theirs, Path(log).open("ab") as output:
            files = [theirs.fileno(), output.fileno(), *([] if listener is None else [listener.fileno()])]
            socket.send_fds(self._control, [json.dumps(request).encode()], files)
        return Process(ours)


@dataclass(frozen=True)
class Usage:
    """What the kernel says of a process."""

    descriptors: int
    threads: int
    children: int
    resident_kib: int
    cpu_seconds: float
    """Since it was started."""


class Agent:
    """A standalone agent with folders of its own; a context manager that leaves nothing behind.

    `folder` is where they are made (a temporary one if None), and `run` the one for sockets, whose paths have at most
    107 bytes (below `folder` if None). `flags` are added to the command line. `fresh` starts it by exec, or with
    `runner`, what makes a Python run the command.
    """

    def __init__(
        self,
        launcher,
        *,
        manifests,
        folder=None,
        run=None,
        node="n1",
        flags=(),
        environment=None,
        fresh=False,
        runner=None,
    ):
        self._launcher = launcher
        self._owns = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="al-"))
        self._node = node
        self._flags = list(flags)
        self._environment = environment or {}
        self._runner = runner or (_RUNNER if fresh else None)
        self._process = None
        self._before = []
        self.notices = []
        """What it said to its service manager since it was started, a dictionary for each message."""
        self.disk = self.folder / "disk"
        """All that it writes, its log and what is in `run` apart."""
        self.socket = Path(run or self.disk / "run", "cni.sock")
        self.spool = self.socket.with_name("spool")
        self.state = self.disk / "state"
        self.manifests = self.folder / "manifests"
        self.cache = self.folder / "cni"
        self.log_file = self.folder / "agent.log"
        for made in (self.socket.parent, self.state, self.manifests, self.cache, self.folder / "none"):
            made.mkdir(parents=True, exist_ok=True)
        for name, text in manifests.items():
            (self.manifests / name).write_text(text)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._notify_path = Path(run or self.folder, "notify")
        self._notify_path.unlink(missing_ok=True)
        self._notify.bind(str(self._notify_path))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (*self._before, *([self._process] if self._process else [])):
            process.close()
        self._notify.close()
        if self._owns:
            shutil.rmtree(self.folder)

    # -- its life

    def launch(self, *, listener=None, descriptors=None, flags=()):
        """Start the process and wait for nothing."""
        if self._process is not None and self._process.running:
            self._before.append(self._process)
        elif self._process is not None:
            self._process.close()
        self._hear()
        self.notices = []
        self._process = self._launcher.start(
            ["agent", *self.arguments(), *flags],
            log=self.log_file,
            environment={"NOTIFY_SOCKET": str(self._notify_path), **self._environment},
            listener=listener,
            runner=self._runner,
            descriptors=descriptors,
        )

    def arguments(self):
        """The flags of `allotment agent`."""
        return [
            *("--node", self._node, "--http", "off", "--socket", self.socket, "--manifests", self.manifests),
            *("--state-dir", self.state, "--netns-dir", self.folder / "none", "--cni-cache-dir", self.cache),
            *self._flags,
        ]

    def start(self, *, limit=PATIENCE, **options):
        """Start the process and wait until it says that it is ready."""
        self.launch(**options)
        assert self.await_notice("READY", limit=limit), f"the agent is not ready, or ended: {self.log()}"

    def await_notice(self, name, *, limit=PATIENCE, content=""):
        """Wait until it has said `name` (with `content` in it); False when it ended first or `limit` has passed."""
        until = now() + limit
        while not any(content in notice.get(name, ()) for notice in self.notices if name in notice):
            ready = readable(max(0.0, until - now()), self._notify, self._process)
            self._hear()
            if not ready or (self._notify not in ready and not self._process.running):
                return any(content in notice.get(name, ()) for notice in self.notices if name in notice)
        return True

    def _hear(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._notify.recv(_LARGEST).decode().split("\n")
                self.notices.append(dict(line.split("=", 1) for line in lines if "=" in line))

    @property
    def running(self):
        return self._process is not None and self._process.running

    @property
    def pid(self):
        return self._process.pid

    @property
    def process(self):
        return self._process

    def send(self, number):
        self._process.send(number)

    def wait(self, limit=PATIENCE):
        """Its exit code; a failure when it does not end."""
        code = self._process.wait(limit)
        assert code is not None, f"the agent has not ended within {limit} s: {self.log()}"
        return code

    def kill(self):
        """SIGKILL, and wait for the end."""
        self._process.send(signal.SIGKILL)
        return self.wait()

    def stop(self):
        """SIGTERM, wait for the end, which must be an orderly one."""
        self._process.send(signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"the agent ended with {code}: {self.log()}"

    def log(self, size=4000):
        """The end of its log."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_bytes()[-size:].decode(errors="replace")
        return ""

    # -- what it is asked

    def ask(self, verb, container="", *, network="blue", timeout=PATIENCE, **more):
        """One CNI call over the socket; the reply, acknowledged."""
        from allotment.cni.client import Client

        return Client(self.socket, timeout=timeout).call(environment(verb, container, **more), conf(network))

    def shim(self, verb, container="", *, body=None, timeout_ms=None, **more):
        """Start the shim for one call and hand it all it wants; `communicate()` brings what it prints."""
        process = subprocess.Popen(
            [shim_binary()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.shim_environment(verb, container, timeout_ms=timeout_ms, **more),
        )
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(conf() if body is None else body)
        process.stdin = None
        return process

    def shim_environment(self, verb, container="", *, timeout_ms=None, **more):
        env = {"ALLOTMENT_SOCKET": str(self.socket), **environment(verb, container, **more)}
        return env if timeout_ms is None else env | {"ALLOTMENT_TIMEOUT_MS": str(timeout_ms)}

    def held(self):
        """What the running agent holds: (network, container) to its addresses, as sorted text."""
        return addresses_of(self.leases())

    def leases(self):
        """Every lease that the running agent holds."""
        import msgspec

        from allotment.cni.client import Client
        from allotment.node.inquiries.reports import LeasesReport

        found, more = [], ""
        while True:
            report = msgspec.json.decode(
                Client(self.socket, timeout=PATIENCE).query("leases", json.dumps({"more": more}).encode()),
                type=LeasesReport,
            )
            found += report.leases
            more = report.more
            if not more:
                return found

    def usage(self):
        """What the process takes up now."""
        return usage(self.pid)


def usage(pid="self"):
    """What a process takes up now."""
    proc = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    ticks = (proc / "stat").read_text().rpartition(")")[2].split()
    children = 0
    for task in (proc / "task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ended meanwhile
            children += len((task / "children").read_text().split())
    return Usage(
        descriptors=len(list((proc / "fd").iterdir())),
        threads=int(status["Threads"]),
        children=children,
        resident_kib=int(status["VmRSS"].split()[0]),
        cpu_seconds=(int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
    )


def readable(limit, *files):
    """Those of `files` that can be read, waiting `limit` seconds for the first; not select(2), which ends at 1024."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    found = {descriptor for descriptor, _ in poll.poll(limit * 1000)}
    return [file for file in files if file.fileno() in found]


def now():
    """Seconds of the clock that leases are stamped with."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def addresses_of(leases):
    """(network, container) to the addresses, as sorted text, of the agent's reports or of the ledger's leases."""
    found = {}
    for lease in leases:
        owner = getattr(lease, "owner", lease)
        container = getattr(owner, "container_id", None) or owner.container
        found.setdefault((owner.network, container), []).append(str(lease.address))
    return {key: tuple(sorted(addresses)) for key, addresses in found.items()}


def told(reply):
    """The addresses in the answer to an ADD, as sorted text."""
    return tuple(sorted(entry["address"].split("/")[0] for entry in json.loads(reply)["ips"]))


def environment(verb, container="", *, interface="eth0", netns="", **more):
    """The CNI_* variables of a call; one that is None isn't set."""
    env = {"CNI_COMMAND": verb, "CNI_PATH": "/opt/cni/bin"}
    if container:
        env |= {
            "CNI_CONTAINERID": container,
            "CNI_IFNAME": interface,
            "CNI_NETNS": netns or f"/run/netns/{container}",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=test;K8S_POD_NAME={container};K8S_POD_UID=uid-{container}",
        }
    return {name: str(value) for name, value in (env | more).items() if value is not None}


def conf(network="blue", *, version="1.1.0", **more):
    """The network configuration of a call, encoded."""
    content = {"cniVersion": version, "name": network, "type": "ptp", "ipam": {"type": "allotment"}, **more}
    return json.dumps(content).encode()


def network(name="blue", *, v4="10.4.0.0/24", v6="fd00:4::/120", cooldown=1, block=26, block6=122, metadata=""):
    """The manifest of a Network, dual-stack unless one of the subnets is empty."""
    subnets = [(cidr, length) for cidr, length in ((v4, block), (v6, block6)) if cidr]
    lines = [
        "apiVersion: allotment.dev/v1alpha1",
        "kind: Network",
        f"metadata: {{name: {name}{metadata}}}",
        f"spec: {{type: L3, cooldownSeconds: {cooldown}, subnets: [",
        *(f"  {{cidr: {cidr!r}, hostPrefixLength: {length}}}," for cidr, length in subnets),
        "]}",
    ]
    return "\n".join(lines) + "\n"


def shim_binary(architecture=None):
    """The plugin, for this machine if nothing else is said."""
    import allotment

    return Path(allotment.__file__).parent / "_shim" / f"allotment-{architecture or platform.machine()}"


# -- in the launcher's process -----------------------------------------------------------------------------------------


def _die_with_parent(parent):
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def _serve(control, parent, modules):
    """Start what is asked for, and say of each when it ended and how."""
    for module in ("allotment.cli", "allotment.cli.agent", *modules):
        importlib.import_module(module)
    _die_with_parent(parent)
    running = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == control.fileno():
                message, files, _, _ = socket.recv_fds(control, _LARGEST, 3)
                if not message:
                    os._exit(0)
                channel, pid = _start(json.loads(message), files)
                pidfd = os.pidfd_open(pid)
                socket.send_fds(channel, [str(pid).encode()], [pidfd])
                running[pidfd] = (channel, pid)
                poll.register(pidfd, select.POLLIN)
            else:
                poll.unregister(descriptor)
                channel, pid = running.pop(descriptor)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):
                    channel.send(str(os.waitstatus_to_exitcode(status)).encode())
                channel.close()
                os.close(descriptor)


def _start(request, files):
    channel = socket.socket(fileno=files[0])
    launcher = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in files[1:]:
            os.close(descriptor)
        return channel, pid
    code = 1
    try:
        _die_with_parent(launcher)
        _become(request, *files[1:])
        import allotment.cli

        code = allotment.cli.main(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _become(request, output, listener=None):
    """In the new process: only what an agent has that somebody starts; by exec it never returns."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    environment = request["environment"]
    if listener is not None:
        environment |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "cni"}
        os.dup2(listener, 3, inheritable=True)
    kept = 4 if listener is not None else 3
    os.closerange(kept, os.sysconf("SC_OPEN_MAX"))
    if request["descriptors"] is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"], request["descriptors"]))
    os.environ.update(environment)
    if request["runner"] is not None:
        os.execv(sys.executable, [sys.executable, *request["runner"], *request["arguments"]])


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), os.getppid(), sys.argv[2:])
