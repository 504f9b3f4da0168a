"""What is on disk is gone, cut off or wrong, or what is read instead of it is empty.

C3: a file of the store was made, its write failed, its removal failed: an address is blocked for ever, or lost.
C15: the daemon restarts, makes its state again from a list that isn't complete, and gives away running pods' addresses.
"""

import errno
import os
import shutil
import signal

import pytest

from agents import network
from faults.injection import CHANGES, Call
from faults.node import faulty_node
from nodes import cni_cache_entry, until

RUNNING = [f"pod-{number}" for number in range(10)]


def run_pods(node, *pods):
    """ADD, and what libcni remembers of it: so they run, whatever becomes of the ledger."""
    told = {}
    for pod in pods:
        got = node.call("ADD", pod)
        assert got.ok, got
        told[pod] = tuple(sorted(address.split("/")[0] for address in got.addresses))
        cni_cache_entry(node.cache, pod, got.addresses)
    return told


@pytest.fixture
def running(make_node):
    """A node whose agent was killed while ten pods ran; `told` is what they have."""
    node = make_node({"blue.yaml": network(cooldown=0)})
    node.start()
    node.told = run_pods(node, *RUNNING)
    node.kill()
    return node


def assert_kept(node, *, more=50):
    """I1: who ran has what it was told, and nobody who comes now is given any of that."""
    held = {container: addresses for (_, container), addresses in node.held().items()}
    assert held == node.told
    given = [address for number in range(more) for address in node.give(f"new-{number}")]
    assert len(set(given)) == len(given)
    assert not set(given) & {address for addresses in node.told.values() for address in addresses}


def set_asides(node):
    return sorted(node.state.glob("ledger-*.set-aside"))


# -- C3

CUTS = {"quick": [0, 100, 4096, -1], "all": [1, 15, 512, 4095, 4097, 8192, 20000, -4097, -4096, -100]}


@pytest.mark.parametrize("cuts", ["quick", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal"])
def test_a_ledger_that_was_cut_off_anywhere_is_reported_and_made_again(running, name, cuts):
    """C3, I2, I15: a damaged ledger is set aside, never deleted; what is told stays told."""
    whole = running.state.with_name("whole")
    shutil.copytree(running.state, whole)
    size = (whole / name).stat().st_size
    for cut in sorted({cut % size if cut < 0 else min(cut, size - 1) for cut in CUTS[cuts]}):
        shutil.rmtree(running.state)
        shutil.copytree(whole, running.state)
        os.truncate(running.state / name, cut)
        running.log_file.unlink()
        running.start()

        assert_kept(running, more=5)
        asides = set_asides(running)
        assert bool(asides) == running.said('"ledger set aside"'), cut
        for aside in asides:
            assert (aside / name).stat().st_size >= cut
            assert (aside / "reason.txt").read_text().strip()
        running.kill()


DAMAGES = {
    "gone": lambda state: (state / "ledger.db").unlink(),
    "gone with all that belongs to it": lambda state: [path.unlink() for path in state.glob("ledger*")],
    "text": lambda state: (state / "ledger.db").write_text("not a database\n" * 1000),
    "zeros": lambda state: (state / "ledger.db").write_bytes(bytes(32768)),
    "a page of it zeros": lambda state: overwrite(state / "ledger.db", 4096, bytes(4096)),
    "its log gone": lambda state: (state / "ledger.db-wal").unlink(),
    "its log garbage": lambda state: overwrite(state / "ledger.db-wal", 32, b"\xff" * 4096),
    "all but the log gone": lambda state: [
        path.unlink() for path in state.glob("ledger*") if path.name != "ledger.db-wal"
    ],
}


def overwrite(path, offset, content):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


@pytest.mark.parametrize("what", DAMAGES)
def test_a_ledger_that_is_damaged_while_the_agent_is_down_loses_nobody(running, what):
    """C3, C15: another member: not cut off, but gone or overwritten."""
    DAMAGES[what](running.state)
    running.start()
    assert_kept(running)
    assert running.said('"rebuilt the ledger from what runs"')
    running.stop()
    running.start()
    assert len(running.leases()) == 120
    assert len(set_asides(running)) <= 1, "a ledger that was made again is well"


def test_a_ledger_cut_off_under_the_running_agent_loses_nobody(make_node):
    """C3: something truncates the file while it is open. Whatever was answered since is there after the next start."""
    node = make_node({"blue.yaml": network(cooldown=0)})
    node.start()
    node.told = run_pods(node, *RUNNING[:5])
    os.truncate(node.state / "ledger.db", 0)
    for pod in RUNNING[5:]:
        got = node.call("ADD", pod)
        assert got.code in (0, 11), got
        if got.ok:
            node.told[pod] = tuple(sorted(address.split("/")[0] for address in got.addresses))
            cni_cache_entry(node.cache, pod, got.addresses)
    node.kill()
    node.start()
    assert_kept(node)


def test_a_rebuild_that_is_killed_begins_anew(running):
    """C3, I15: the note that leases are to be made again outlives the agent that was about to."""
    (running.state / "ledger.db").unlink()
    for _ in range(3):
        running.launch()
        running.await_notice("STATUS", content="rebuilt")
        running.send(signal.SIGKILL)
        running.wait()
    running.start()
    assert_kept(running)


def test_what_is_damaged_beside_the_ledger_is_no_reason_to_make_it_again(running):
    """C3: mark and ballast are aids; without them the ledger still says what was written."""
    (running.state / "ledger.mark").unlink()
    (running.state / "ledger.ballast").unlink(missing_ok=True)
    shutil.rmtree(running.cache)
    running.start()
    assert_kept(running)


@pytest.fixture
def failing():
    """A node on a disk that fails when it is told to."""
    with faulty_node({"blue.yaml": network(cooldown=0)}) as node:
        node.start()
        yield node


QUICK = [("write", errno.ENOSPC), ("sync", errno.EIO)]
FAILURES = [
    pytest.param(
        Call[call.upper()],
        error,
        id=f"{call}-{errno.errorcode[error]}",
        marks=[] if (call, error) in QUICK else pytest.mark.slow,
    )
    for call in ("write", "sync")
    for error in (errno.ENOSPC, errno.EIO, errno.EROFS)
]


@pytest.mark.parametrize(("call", "error"), FAILURES)
def test_an_add_on_a_disk_that_fails_says_so_leaves_nothing_and_service_resumes(failing, error, call):
    """C3, I2: nothing is half-done: no address is blocked by what failed, and none is given twice later."""
    failing.told = run_pods(failing, *RUNNING[:3])
    failing.disk_control.arm(call, error=error, match="ledger.db")
    for number in range(5):
        refused = failing.refuse(f"failed-{number}")
        assert refused.code == 11, refused
        assert "disk" in refused.message
    assert len(failing.leases()) == 6
    assert all(failing.call("CHECK", pod, config={"prevResult": {"ips": []}}).code != 11 for pod in RUNNING[:3])
    failing.disk_control.disarm()

    until(lambda: failing.call("ADD", "resumed").ok, "service does not resume by itself")
    failing.free("resumed")
    assert_kept(failing, more=20)
    failing.kill()
    failing.start()
    assert len(failing.leases()) == 46
    assert {container for _, container in failing.held()} == {*RUNNING[:3], *(f"new-{number}" for number in range(20))}


def test_an_agent_that_starts_on_a_failing_disk_starts_when_it_is_well(failing):
    """C3: not even a ledger can be opened; the supervisor tries again, and nothing is lost or given twice meanwhile."""
    failing.told = run_pods(failing, *RUNNING)
    failing.kill()
    failing.disk_control.arm(CHANGES, error=errno.EIO)
    failing.launch()
    failing.until_ended_or_ready()
    failing.disk_control.disarm()
    if failing.running:
        until(lambda: failing.call("STATUS").ok, "service does not resume")
    else:
        assert failing.wait() != 0
        failing.start()
    assert_kept(failing)


# -- C15


def test_an_emptied_folder_gives_away_nothing_across_a_restart(running):
    """C15: 200 OK, and no pods: here all manifests gone at once."""
    running.remove("blue.yaml")
    running.start()
    until(lambda: "holds no manifests" in running.status().source.doubted, "the empty folder is believed")
    assert_kept(running)


def test_the_ledger_gone_and_the_folder_empty_at_once(running):
    """C15: what runs is known from libcni alone; where its addresses lie, from what the state folder kept."""
    running.remove("blue.yaml")
    for path in running.state.glob("ledger*"):
        path.unlink()
    running.start()
    assert_kept(running)


@pytest.mark.parametrize("away", ["missing", "empty", "unreadable"])
def test_all_state_gone_and_the_folder_not_there_yet(running, away):
    """C15, I15: nobody says which networks there are, so where the running pods' addresses lie isn't known yet.

    When the manifests come, the pods that run must be known before anyone is served.
    """
    text = (running.manifests / "blue.yaml").read_text()
    shutil.rmtree(running.state)
    match away:
        case "missing":
            running.remove("blue.yaml")
            running.manifests.rmdir()
        case "empty":
            running.remove("blue.yaml")
        case "unreadable":
            running.write("blue.yaml", "kind: [")
    running.launch()
    until(running.status_or_none, "the agent does not answer")
    assert not running.call("ADD", "early").ok

    running.manifests.mkdir(exist_ok=True)
    running.write("blue.yaml", text)
    running.serving()
    assert_kept(running)


def test_a_network_that_comes_after_the_rebuild_finds_its_pods_known(running):
    """C15: of two networks one can't be read while the ledger is made again; its pods ran all the while."""
    text = (running.manifests / "blue.yaml").read_text()
    shutil.rmtree(running.state)
    running.write("red.yaml", network("red", v4="10.5.0.0/24", v6="fd00:5::/120"))
    running.write("blue.yaml", text.replace("spec:", "specification:"))
    running.launch()
    until(lambda: running.status_or_none() and running.problems(), "the broken file is not reported")
    running.write("blue.yaml", text)
    running.serving("red")
    running.serving()
    assert_kept(running)


def test_a_memory_that_is_half_written_does_not_stop_a_rebuild(running):
    """C15: libcni writes its cache without a rename; one file is cut off, the others speak for their pods."""
    (running.cache / "results" / "blue-half-eth0").write_text('{"kind": "cniCacheV1", "containerId": "ha')
    (running.cache / "results" / "blue-dir-eth0").mkdir()
    (running.state / "ledger.db").unlink()
    running.start()
    assert_kept(running)


def test_a_del_that_waited_out_the_rebuild_ends_its_lease(running):
    """C15, C5: the pod ended while the agent and its ledger were gone; the kept DEL must find the lease made again."""
    assert running.run("DEL", "pod-3", timeout_ms=50).ok
    (running.state / "ledger.db").unlink()
    running.start()
    until(lambda: running.status().spool.waiting == 0, "the kept DEL is not replayed")
    del running.told["pod-3"]
    assert_kept(running)


# -- I3


@pytest.mark.parametrize("how", ["damaged", "gone", "all gone while pods run"])
def test_what_nobody_holds_rests_when_the_ledger_is_lost(make_node, how):
    """I3: which addresses were cooling isn't known any more, so it may be any of them."""
    node = make_node({"blue.yaml": network(cooldown=600)})
    node.start()
    node.told = run_pods(node, "stays")
    released = node.give("ends")
    node.free("ends")
    node.kill()
    if how == "damaged":
        (node.state / "ledger.db").write_bytes(b"not a database")
    elif how == "gone":
        for path in node.state.glob("ledger.*"):
            path.unlink()
    else:
        shutil.rmtree(node.state)
        node.state.mkdir()
    node.start()
    assert "252 cooling (next in" in node.refuse("new").message
    assert node.give("stays") == node.told["stays"], "who runs is told what it has"
    assert node.status().not_serving == "", "a host that says 50 loses its pods"
    assert "cooling" in str(node.cli("explain", released[0]))
    node.kill()
    node.start()
    assert "cooling (next in" in node.refuse("new").message, "the rests are on disk"
    node.write("blue.yaml", network(cooldown=1))
    until(lambda: node.call("ADD", "new").ok, "nothing is given after the cooldown")


def test_a_first_start_waits_for_no_cooldown(make_node):
    node = make_node({"blue.yaml": network(cooldown=600)})
    node.start()
    assert node.give("first")
