"""Standalone mode from outside: the process, its settings, its end, and what it finds when it starts again."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agents import network
from allotment.addressing.errors import InternalError
from cases.inside import Inside
from namespaces import Namespaces
from nodes import cni_cache_entry, until

BLUE = {"blue.yaml": network(cooldown=0)}


# -- settings


def test_a_flag_goes_before_the_environment_and_that_before_the_file(make_node):
    """Seen in what the agent does: whose name it says, how it logs, how long an ADD waits."""
    node = make_node(BLUE)
    toml = node.folder / "agent.toml"
    toml.write_text('node = "from-file"\nlog_format = "console"\nadd_wait = 0.1\nhistory_rows = 7\n')
    places = [flag for flag in node.arguments() if flag not in ("--node", "n1")]
    said = {}
    for name, flags, environment in (
        ("file", [], {}),
        ("environment", [], {"ALLOTMENT_NODE": "from-environment", "ALLOTMENT_LOG_FORMAT": "json"}),
        ("flag", ["--node", "from-flag"], {"ALLOTMENT_NODE": "from-environment", "ALLOTMENT_LOG_FORMAT": "json"}),
    ):
        node.log_file.unlink(missing_ok=True)
        node._environment = {"ALLOTMENT_CONFIG": str(toml), **environment}
        node.arguments = lambda flags=flags: [*places, *flags]
        shutil.rmtree(node.state)
        node.start()
        until(lambda: node.status().source.synced, "the folder is not read")
        first = node.log().splitlines()[0]
        said[name] = (node.status().node, first.startswith("{"), sorted(os.listdir(node.state / "allocations")))  # noqa: PTH208
        node.stop()
    assert said == {
        "file": ("from-file", False, ["blue.from-file.yaml"]),
        "environment": ("from-environment", True, ["blue.from-environment.yaml"]),
        "flag": ("from-flag", True, ["blue.from-flag.yaml"]),
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--add-wait", "soon"], "--add-wait: 'soon' is no time"),
        (["--config", "/nowhere/agent.toml"], "the settings file /nowhere/agent.toml can't be read"),
        (["--boot-id-file", "/nowhere/boot_id"], "the boot ID can't be read from /nowhere/boot_id"),
        (["--state-dir", "/proc/nowhere"], "the state folder /proc/nowhere can't be made"),
        (["--http", "192.0.2.1:80"], "choose another with --http, or --http off"),
    ],
)
def test_a_setting_that_can_not_be_is_told_and_ends_the_process(make_node, flags, said):
    node = make_node(BLUE, flags=flags)
    node.launch()
    assert node.wait() not in (0, None)
    assert said in node.log()
    assert not any("READY" in notice for notice in node.notices)


# -- the service manager


def test_a_service_manager_is_told_of_start_life_and_end(make_node):
    node = make_node(BLUE, environment={"WATCHDOG_USEC": "300000"})
    node.start()
    assert node.await_notice("STATUS", content="serving node n1")
    assert node.await_notice("WATCHDOG", content="1")
    node.notices.clear()
    assert node.await_notice("WATCHDOG", content="1"), "only one sign of life"
    node.stop()
    assert node.await_notice("STOPPING", content="1")


def test_requests_in_flight_are_finished_before_the_end(make_node):
    """SIGTERM while twenty plugins are in the middle of it; those that came too late are the next agent's."""
    node = make_node(BLUE)
    node.start()
    node.send(signal.SIGSTOP)
    shims = [node.begin("ADD", f"c{number}") for number in range(20)]
    node.send(signal.SIGTERM)
    node.send(signal.SIGCONT)
    assert node.wait() == 0, node.log()
    assert node.said('"event":"stopped"')
    node.start()
    answers = [node.finish(shim) for shim in shims]
    assert all(answer.ok for answer in answers), answers
    assert len({address for answer in answers for address in answer.addresses}) == len(node.leases()) == 40


def test_a_request_that_waits_does_not_hold_up_the_end_for_ever(make_node):
    """It waits to be admitted, for a minute; the end is granted a second."""
    node = make_node(
        {"broken.yaml": "kind: [", **BLUE}, flags=["--add-wait", "60", "--drain-seconds", "0.5"], boot="before"
    )
    node.start()
    until(node.network, "the network is not seen")
    waiting = node.begin("ADD", "c1", timeout_ms=20000)
    until(lambda: node.status().in_flight == 1, "the ADD does not wait")
    node.stop()
    node.remove("broken.yaml")
    node.start()
    assert node.finish(waiting).ok, "the plugin did not ask the next agent"
    assert len(node.leases()) == 2


def test_killed_or_replaced_under_a_socket_that_is_passed_on_no_call_fails(make_node):
    """Socket activation: the socket outlives the agent, and calls wait in it."""
    node = make_node(BLUE)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(node.socket))
        listener.listen(100)
        node.start(listener=listener)
        node.give("c0")
        for end in (node.kill, node.stop, node.kill):
            end()
            shims = [node.begin("ADD", f"c{number}") for number in range(10)]
            node.start(listener=listener)
            assert all(node.finish(shim).ok for shim in shims)
            assert len(node.leases()) == 20
            for number in range(10):
                assert node.run("DEL", f"c{number}").ok


@contextlib.contextmanager
def activated(node):
    """The agent's process, once systemd's own tool listens for it; started by the first call, ended by SIGTERM."""
    with node.log_file.open("ab") as log:
        agent = subprocess.Popen(
            ["systemd-socket-activate", "-l", str(node.socket), sys.executable, "-m", "allotment.cli", "agent"]
            + [str(flag) for flag in node.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            until(node.socket.exists, "systemd does not listen")
            yield agent
            agent.terminate()
            assert agent.wait(60) == 0, node.log()
        finally:
            agent.kill()
            agent.wait()


def test_the_first_call_starts_the_agent_through_systemd(make_node):
    """By systemd's own hand: it listens, a plugin calls, the agent is started with the socket and answers."""
    node = make_node(BLUE)
    with activated(node):
        got = node.run("ADD", "c1")
        assert got.ok, (got, node.log())
        assert node.give("c1") == ("10.4.0.2", "fd00:4::2")


@pytest.mark.slow
def test_an_agent_that_systemd_activates_is_replaced_under_load_and_no_call_fails(make_node):
    """I11: calls wait in the socket, and for the moment in which there is none, in the plugin."""
    node = make_node(BLUE)
    pods = iter(range(10_000))
    done = threading.Event()

    def load():
        answers = []
        while not done.is_set():
            name = f"c{next(pods)}"
            answers += [node.run(verb, name) for verb in ("ADD", "ADD", "DEL")]
        return answers

    with ThreadPoolExecutor(4) as callers:
        loads = [callers.submit(load) for _ in range(4)]
        try:
            for calls in (12, 24, 36):
                with activated(node):
                    until(lambda calls=calls: node.log(1 << 24).count('"verb":"ADD"') >= calls, "nobody calls")
            with activated(node):
                done.set()
                answers = [one for each in loads for one in each.result()]
                until(lambda: node.held() == {}, "something is held though all was given back")
        finally:
            done.set()
    assert [one for one in answers if not one.ok] == []
    assert len(answers) >= 36


async def ends(_publish):
    """A part that comes to its end."""


async def fails(_publish):
    """A part with a fault of ours."""
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(("run", "error"), [(ends, InternalError), (fails, ExceptionGroup)])
async def test_a_part_that_ends_takes_the_process_with_it(tmp_path, run, error):
    """Nothing dies quietly: whatever it is, the agent ends with an error and is started again by who watches it."""
    with socket.socket(socket.AF_UNIX) as listener:  # ours, for an agent that ends so leaves it to its process' end
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        daemon = Inside(tmp_path, BLUE, listener=listener)
        source = daemon.make_source()
        daemon.make_source = lambda: Parted(source, run)
        with pytest.raises(error):
            await daemon.start()


class Parted:
    """A source whose `run` is another."""

    def __init__(self, source, run):
        self._source = source
        self._run = run

    async def run(self, publish, **_):
        await self._run(publish)

    def __getattr__(self, name):
        return getattr(self._source, name)


# -- what a start finds


def test_a_reboot_with_the_ledger_ends_all_leases_and_without_it_finds_none(make_node):
    """The boot ID's file named by the environment; libcni's memory outlives the reboot, the namespaces don't."""
    node = make_node(BLUE, boot="before")
    node._flags = [flag for flag in node._flags if flag not in ("--boot-id-file", node.boot_file)]
    node._environment = {"ALLOTMENT_BOOT_ID_FILE": str(node.boot_file)}
    node.start()
    got = node.call("ADD", "c1")
    cni_cache_entry(node.cache, "c1", got.addresses, netns=f"{node.folder}/none/gone")
    node.reboot("second")
    node.start()
    assert node.leases() == []
    assert {entry.ended.cause for entry in node.history(container="c1")} == {"boot"}

    got = node.call("ADD", "c2")
    cni_cache_entry(node.cache, "c2", got.addresses, netns=f"{node.folder}/none/gone-too")
    node.reboot("third")
    for path in node.state.glob("ledger*"):
        path.unlink()
    node.start()
    assert node.leases() == []
    assert node.give("c3") == ("10.4.0.2", "fd00:4::2")


@pytest.fixture
def pods(make_node):
    """A node with three pods in namespaces with their addresses; libcni knows two of them."""
    with Namespaces() as spaces:
        node = make_node(BLUE, flags=["--netns-dir", spaces.folder])
        node.spaces = spaces
        node.start()
        node.told, node.paths = {}, {}
        for pod in ("known-1", "known-2", "unknown"):
            path = spaces.folder / pod
            got = node.call("ADD", pod, netns=str(path))
            spaces.make(*got.addresses, name=pod)
            node.paths[pod] = str(path)
            node.told[pod] = tuple(sorted(address.split("/")[0] for address in got.addresses))
            if pod != "unknown":
                cni_cache_entry(node.cache, pod, got.addresses, netns=str(path))
        yield node
        # The agent goes first: it looks into the namespaces.
        if node.running:
            node.kill()


def assert_pods_keep_theirs(node, *, running=("known-1", "known-2", "unknown")):
    """I1: the pods that run hold what they have, and nobody who comes is given that."""
    held = {container: addresses for (_, container), addresses in node.held().items()}
    names = {pod: pod if pod in held else f"netns-{pod}" for pod in running}
    assert {pod: held.get(name) for pod, name in names.items()} == {pod: node.told[pod] for pod in running}
    given = [address for number in range(30) for address in node.give(f"new-{number}")]
    assert len(set(given)) == 60
    assert not set(given) & {address for pod in running for address in node.told[pod]}
    for number in range(30):
        node.free(f"new-{number}")


LOSSES = {
    "deleted": lambda state: (state / "ledger.db").unlink(),
    "damaged": lambda state: (state / "ledger.db").write_bytes(os.urandom(20000)),
    "all state deleted": shutil.rmtree,
}


@pytest.mark.root
@pytest.mark.parametrize("loss", LOSSES)
def test_a_ledger_lost_under_running_pods_is_made_again_from_them(pods, loss):
    pods.kill()
    LOSSES[loss](pods.state)
    pods.start()
    assert_pods_keep_theirs(pods)
    leases = {lease.address: lease for lease in pods.leases()}
    assert {lease.container for lease in leases.values()} == {"known-1", "known-2", "netns-unknown"}
    assert leases[pods.told["known-1"][0]].pod == "known-1"
    if loss != "all state deleted":
        [aside] = pods.state.glob("ledger-*.set-aside")
        assert (aside / "reason.txt").read_text().strip()
        assert pods.said(str(aside))

    # Each pod's own DEL ends what it has, also of the one that only its namespace was known of.
    for pod in pods.told:
        assert pods.run("DEL", pod, CNI_NETNS=pods.paths[pod]).ok
    assert pods.leases() == []


@pytest.mark.root
def test_a_pod_that_has_ended_meanwhile_is_not_made_again(pods):
    pods.kill()
    (pods.state / "ledger.db").unlink()
    for path in list(pods.spaces._made):
        if path.name != "known-2":
            pods.spaces.end(path)
    pods.start()
    assert {lease.container for lease in pods.leases()} == {"known-2"}
    assert_pods_keep_theirs(pods, running=("known-2",))


@pytest.mark.root
def test_a_rebuild_that_is_impossible_says_so_and_goes_on_when_it_can(pods):
    """I8: a witness that can't be heard is not one that says nothing. STATUS 50 with the reason, DELs are kept."""
    pods.kill()
    (pods.state / "ledger.db").unlink()
    strange = pods.spaces.folder / "strange"  # lies where namespaces lie, and can't be entered as one of a network
    strange.touch()
    subprocess.run(["mount", "--bind", "/proc/self/ns/uts", str(strange)], check=True)
    try:
        pods._flags += ["--add-wait", "0.1"]
        pods.launch()
        assert pods.await_notice("STATUS", content="cannot enter the network namespace")
        status = pods.call("STATUS")
        assert status.code == 50
        assert "the ledger is being rebuilt" in status.message
        assert str(strange) in status.message
        refused = pods.refuse("early")
        assert (refused.code, str(strange) in refused.message) == (11, True)
        assert any(str(strange) in problem for problem in pods.cli("status", code=1)["problems"])
        assert pods.run("DEL", "known-1").ok, "a pod can't end"
        assert pods.status().spool.waiting == 1
        assert not any("READY" in notice for notice in pods.notices)
    finally:
        subprocess.run(["umount", str(strange)], check=True)
    strange.unlink()
    assert pods.await_notice("READY"), pods.log()
    until(lambda: pods.status().spool.waiting == 0, "the kept DEL is not replayed")
    assert pods.call("STATUS").ok
    assert_pods_keep_theirs(pods, running=("known-2", "unknown"))
    assert not {lease.container for lease in pods.leases()} & {"known-1"}


@pytest.mark.root
@pytest.mark.slow
def test_a_folder_of_namespaces_that_can_not_be_listed_stops_a_rebuild(pods):
    pods.kill()
    (pods.state / "ledger.db").unlink()
    plain = pods.folder / "plain"
    plain.write_text("")
    pods._flags += ["--netns-dir", plain]
    pods.launch()
    assert pods.await_notice("STATUS", content=f"cannot list the network namespaces in {plain}")
    assert pods.call("STATUS").code == 50
    plain.unlink()
    assert pods.await_notice("READY"), pods.log()
    assert_pods_keep_theirs(pods)


@pytest.mark.root
def test_all_state_lost_while_the_folder_of_manifests_is_away_finds_the_pods_when_it_is_back(pods):
    """C15, I15: only the namespaces speak, and of addresses that lie in no network that is known yet."""
    text = (pods.manifests / "blue.yaml").read_text()
    pods.kill()
    shutil.rmtree(pods.state)
    shutil.rmtree(pods.cache)
    pods.remove("blue.yaml")
    pods.manifests.rmdir()
    pods.start()
    assert pods.leases() == []
    pods.manifests.mkdir()
    pods.write("blue.yaml", text)
    pods.serving()
    assert_pods_keep_theirs(pods)


def test_http_says_whether_it_is_ready(make_node):
    """/healthz, /readyz and /metrics, with the folder there and away."""
    node = make_node(BLUE, flags=["--http", "127.0.0.1:0"])
    node.start()
    line = until(lambda: next((line for line in node.log().splitlines() if "serving http" in line), ""), "no HTTP")
    port = json.loads(line)["port"]

    def get(path):
        async def ask():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()

        return asyncio.run(ask())

    node.give("c1")
    assert get("/healthz")[0] == 200
    assert get("/readyz")[0] == 200
    assert 'allotment_addresses{family="IPv4",network="blue",state="in_use"} 1.0' in get("/metrics")[1]
    node.remove("blue.yaml")
    until(lambda: get("/readyz")[0] == 503, "it is ready with its folder empty")
    assert "holds no manifests" in get("/readyz")[1]
    assert get("/healthz")[0] == 200
