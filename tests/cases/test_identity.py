"""Who is meant: pods of one name, containers of one ID, callers that gave up and whose second attempt is under way.

C20: a StatefulSet's pod comes back under its name before the DEL of the old one arrives, which frees the new lease.
C23: the kubelet gives up and starts a second plugin while the first still runs, which then allocates for nobody.
C8: a reconciler reads one list, a pod is born, it reads the other list, and the pod loses its address.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agents import environment, network, shim_binary
from allotment.cni.client import Client
from allotment.cni.frames import encode_call
from allotment.cri.messages import Sandbox
from allotment.testing.cri import FakeRuntime
from nodes import cni_cache_entry, until

# -- C20

WEB = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID={uid}"


def web(number, uid=None):
    """The CNI_ARGS of one life of web-0: another UID each time, as the API server gives them."""
    return {"CNI_ARGS": WEB.format(uid=f"uid-{number}" if uid is None else uid)}


def test_a_del_ends_what_an_earlier_sandbox_of_its_pod_left_and_nothing_of_the_pods_new_one(make_node):
    """C20: asked of the runtime, after the DEL has its answer."""
    made = make_node({"blue.yaml": network(cooldown=0)})
    with FakeRuntime(made.folder / "cri.sock") as runtime:
        made._flags += ["--runtime-socket", runtime.path]
        made.start()

        def life(container):
            """Its namespace is one that was, in a folder that is there."""
            return web(1) | {"netns": str(made.folder / "none" / container)}

        made.give("left", **life("left"))  # its DEL never came
        kept = made.give("kept", **life("kept"))
        made.give("other", CNI_ARGS=WEB.format(uid="uid-of-another"), netns=str(made.folder / "none" / "other"))
        runtime.start(Sandbox("kept", name="web-0", namespace="shop", uid="uid-1", ready=True))
        made.free("gone", **life("gone"))
        until(lambda: ("blue", "left") not in made.held(), "what was left is still held")
        assert made.held().keys() == {("blue", "kept"), ("blue", "other")}
        assert made.held()["blue", "kept"] == tuple(sorted(kept))
        (entry, *_) = made.history(container="left")
        assert entry.ended.cause == "workload"


@pytest.mark.parametrize(
    "uid",
    [
        pytest.param(None, id="another UID"),
        pytest.param("", id="no UID", marks=pytest.mark.slow),
        pytest.param("the-same", id="the same UID", marks=pytest.mark.slow),
    ],
)
def test_the_del_of_the_old_container_comes_last_two_hundred_times(node, uid):
    """C20, I7: also for a static pod, whose UID stays, and for a runtime that tells none."""
    before = None
    for number in range(200):
        addresses = node.give(f"web-{number}", **web(number, uid))
        if before is not None:
            node.free(f"web-{number - 1}", **web(number - 1, uid))
        assert addresses != before
        assert {lease.container for lease in node.leases()} == {f"web-{number}"}
        before = addresses
    node.free("web-199", **web(199, uid))
    assert node.leases() == []
    assert len(node.history(pod="shop/web-0")) == 400


def test_old_and_new_come_and_go_at_once(node):
    """C20: both orders are raced; in the end each pod that runs has its address, and nobody else."""
    failed = []

    def life(name):
        try:
            for number in range(40):
                old, new = f"{name}-{number}", f"{name}-{number + 1}"
                threads = [
                    threading.Thread(target=node.free, args=(old,), kwargs=web(number)),
                    threading.Thread(target=node.give, args=(new,), kwargs=web(number + 1)),
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        except BaseException as error:
            failed.append(error)

    lives = [threading.Thread(target=life, args=(name,)) for name in ("a", "b")]
    for thread in lives:
        thread.start()
    for thread in lives:
        thread.join()
    assert not failed
    assert {lease.container for lease in node.leases()} == {"a-40", "b-40"}
    assert len(node.leases()) == 4


def test_a_kept_del_of_the_old_container_ends_nothing_new(node):
    """C20: the DEL waits in the spool while the pod comes back; replayed, it means what it meant."""
    node._flags = node._flags[:-2]  # the spool's entries are stamped with the machine's own boot ID
    node.kill()
    node.start()
    node.give("old", **web(1))
    node.kill()
    assert node.run("DEL", "old", timeout_ms=50, **web(1)).ok
    new = node.begin("ADD", "new", **web(2))
    node.start()

    assert node.finish(new).ok
    until(lambda: node.status().spool.waiting == 0, "the kept DEL is not replayed")
    assert {lease.container for lease in node.leases()} == {"new"}


def test_the_same_container_comes_back_after_its_del(make_node):
    """C20, I3: same ID, within the cooldown: it is a new lease of another address, and its own DEL ends it once."""
    node = make_node({"blue.yaml": network(cooldown=1000)})
    node.start()
    seen = set()
    for _ in range(5):
        addresses = node.give("c1")
        assert not seen & set(addresses), "an address came back within its cooldown"
        seen |= set(addresses)
        node.free("c1")
        node.free("c1")
    assert len(node.history(container="c1")) == 10


# -- C23


def asleep(shim):
    """Whether a shim waits for something."""
    return Path("/proc", str(shim.pid), "stat").read_text().rpartition(")")[2].split()[0] == "S"


def waits_for_its_answer(shim):
    """Whether a shim has connected and sent all, and sleeps until something comes."""
    with contextlib.suppress(FileNotFoundError):
        descriptors = list(Path("/proc", str(shim.pid), "fd").iterdir())
        return any(link.readlink().name.startswith("socket:") for link in descriptors) and asleep(shim)
    return False


def test_a_plugin_killed_while_the_agent_stands_still_leaves_nothing(node):
    """C23: the socket stalls, the kubelet kills the plugin and tries again with a new sandbox."""
    node.send(signal.SIGSTOP)
    try:
        dead = [node.begin("ADD", f"given-up-{number}") for number in range(10)]
        for shim in dead:
            until(lambda shim=shim: waits_for_its_answer(shim), "the shim has not asked")
        for shim in dead:
            shim.kill()
            shim.communicate()
        again = node.begin("ADD", "again")
    finally:
        node.send(signal.SIGCONT)

    assert node.finish(again).ok
    until(lambda: {lease.container for lease in node.leases()} == {"again"}, "a lease was left for nobody")
    assert len(node.leases()) == 2


def test_a_plugin_that_gave_up_by_itself_leaves_nothing(node):
    """C23: the deadline ends inside the shim; what the agent does afterwards is undone."""
    node.send(signal.SIGSTOP)
    try:
        got = node.run("ADD", "impatient", timeout_ms=200)
    finally:
        node.send(signal.SIGCONT)
    assert got.code == 11
    assert "did not answer in time" in got.message
    node.give("next")
    until(lambda: {lease.container for lease in node.leases()} == {"next"}, "a lease was left for nobody")


def test_two_plugins_for_one_container_agree(node):
    """C23: same sandbox, two callers at once. Both are told the same; the one that dies takes nothing along."""
    for number in range(20):
        container = f"c{number}"
        first, second = node.begin("ADD", container), node.begin("ADD", container)
        first.kill()
        first.communicate()
        got = node.finish(second)
        assert got.ok, got
        # The dead one's request may still be on its way through the agent.
        node.call("CHECK", container, config={"prevResult": got.body})
        held = {address.split("/")[0] for address in got.addresses}
        assert {lease.address for lease in node.leases() if lease.container == container} == held
    first, second = node.begin("ADD", "both"), node.begin("ADD", "both")
    assert node.finish(first).addresses == node.finish(second).addresses


def test_a_plugin_whose_standard_output_is_closed_leaves_nothing(node):
    """C23: the kubelet is gone, the plugin lives on and has nobody to tell."""
    shim = node.begin("ADD", "unheard")
    shim.stdout.close()
    shim.wait()
    until(lambda: shim.returncode and not node.leases(), "a lease was left for nobody")


def test_a_caller_that_cuts_the_line_at_any_byte_of_its_request_leaves_nothing(node):
    """C23: a request counts once all of it is there; half a one is none."""
    whole = encode_call(environment("ADD", "cut"), node.conf("blue"))
    for cut in range(0, len(whole), 7):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(node.socket))
            line.sendall(whole[:cut])
    node.give("whole")
    assert {lease.container for lease in node.leases()} == {"whole"}


# -- C8


def test_gc_frees_nothing_that_was_given_after_its_list_was_made(node):
    """C8: the runtime lists its pods and calls, a pod is born and gets its address, the list arrives: in any order."""
    for number in range(30):
        node.give(f"c{number}-old")
        listed = [{"containerID": f"c{number}-old", "ifname": "eth0"}]
        collecting = node.begin("GC", config={"cni.dev/valid-attachments": listed})
        node.give(f"c{number}-born")
        assert node.finish(collecting).ok
        assert {lease.container for lease in node.leases()} >= {f"c{number}-old", f"c{number}-born"}
    node.collect()
    assert node.leases() == []


def gc_with_a_slow_configuration(node):
    """Half of the list is in the plugin's standard input when the pod is born."""
    command = {"ALLOTMENT_SOCKET": str(node.socket), "CNI_COMMAND": "GC"}
    whole = node.conf("blue", {"cni.dev/valid-attachments": []})
    shim = subprocess.Popen([shim_binary()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=command)
    shim.stdin.write(whole[:10])
    shim.stdin.flush()
    yield shim
    shim.stdin.write(whole[10:])
    shim.stdin.close()
    shim.stdin = None
    yield


def gc_without_an_agent(node):
    """The agent is away when the runtime collects, and back when the pod is born."""
    node.kill()
    shim = node.begin("GC", config={"cni.dev/valid-attachments": []})
    until(lambda: asleep(shim), "the shim does not wait")
    shim.send_signal(signal.SIGSTOP)
    node.start()
    yield shim
    shim.send_signal(signal.SIGCONT)
    yield


def gc_of_a_plugin_that_gets_no_time(node):
    """The machine is busy, and the plugin's turn comes late."""
    shim = node.begin("GC", config={"cni.dev/valid-attachments": []})
    shim.send_signal(signal.SIGSTOP)
    yield shim
    shim.send_signal(signal.SIGCONT)
    yield


@pytest.mark.parametrize("late", [gc_with_a_slow_configuration, gc_without_an_agent, gc_of_a_plugin_that_gets_no_time])
def test_gc_means_the_time_at_which_it_was_called(node, late):
    """C8: however late the list arrives, it says nothing of a pod that was born after it was made."""
    node.give("ended")
    steps = late(node)
    shim = next(steps)
    try:
        node.give("born")
        next(steps)
        assert node.finish(shim).ok
    finally:
        shim.kill()
        shim.communicate()
    assert "born" in {lease.container for lease in node.leases()}
    node.collect("born")
    assert {lease.container for lease in node.leases()} == {"born"}


def test_a_rebuild_takes_nothing_from_a_pod_that_is_born_meanwhile(make_node):
    """C8: the runtime's memory is read, then the namespaces; a pod that comes in between waits for the end of both."""
    node = make_node({"blue.yaml": network(cooldown=0)})
    cni_cache_entry(node.cache, "lives", ["10.4.0.2/24", "fd00:4::2/120"])
    born = [node.begin("ADD", f"born-{number}") for number in range(10)]
    node.start()
    told = [address for shim in born for address in node.finish(shim).addresses]
    assert len(set(told)) == 20
    held = {lease.address: lease.container for lease in node.leases()}
    assert held["10.4.0.2"] == held["fd00:4::2"] == "lives"
    assert len(held) == 22


def test_an_operators_gc_frees_the_lease_it_looked_at_and_no_other(make_node):
    """C8, I7: between the look and the word the address went to somebody else."""
    node = make_node({"blue.yaml": network(v4="10.4.0.0/29", v6="", block=29, cooldown=0)})
    node.start()
    node.give("gone")
    [lease] = node.leases()
    node.free("gone")
    for number in range(5):
        node.give(f"filler-{number}")
    item = {"network": "blue", "address": lease.address, "sequence": lease.sequence}
    answer = Client(node.socket).query("gc", json.dumps({"items": [item], "detail": ""}).encode())
    assert b"given to another owner since" in answer
    assert lease.address in {held.address for held in node.leases()}


@pytest.mark.root
def test_a_gc_that_waited_frees_nothing_that_was_given_meanwhile(make_node):
    """C8: also by an agent that can't see its callers' processes, as in a DaemonSet."""
    node = make_node({"blue.yaml": network(cooldown=0)})
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "allotment.cli"]
    with node.log_file.open("wb") as log:
        agent = subprocess.Popen([*apart, "agent", *map(str, node.arguments())], stderr=log)
    try:
        until(lambda: node.call_or_none("STATUS") is not None, "the agent does not answer")
        node.give("early")
        collecting = subprocess.Popen(
            [shim_binary()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=node.shim_environment("GC")
        )
        until(lambda: asleep(collecting), "the plugin does not wait for its list")
        node.give("late")
        said, _ = collecting.communicate(node.conf("blue", {"cni.dev/valid-attachments": []}), timeout=60)
        assert collecting.returncode == 0, said
        assert {lease.container for lease in node.leases()} == {"late"}
    finally:
        agent.kill()
        agent.wait(60)
