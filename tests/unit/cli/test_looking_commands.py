"""The commands that look inside, as a person runs them: against an agent's socket, and against the ledger it left."""

from __future__ import annotations

import json
import os

import pytest

from allotment.cli import Exit, main
from looking import World, allocation, flags, network, served

BLUE = network()


@pytest.fixture
def node(tmp_path):
    """A node with two pods, one of which has gone again."""
    with served(tmp_path, BLUE, allocation(BLUE)) as node:
        node.run(node.world.give("3f2a9c81d0b4", "default/web-0", ips=("10.4.1.7",)))
        node.run(node.world.give("77aa9c81d0b4", "default/web-1"))
        node.run(node.world.free("77aa9c81d0b4", "default/web-1"))
        yield node


@pytest.fixture(params=["agent up", "agent down"])
def both(request, node):
    """The same questions have the same answers with the agent up and down."""
    node.down = request.param == "agent down"
    if node.down:
        node.go_away()
    return node


@pytest.fixture
def run(capsys):
    def run(*words: str, node=None, world: World | None = None) -> tuple[int, str, str]:
        world = world or node.world
        command, *rest = words
        code = main([command, *flags(world), *rest])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_leases(both, run):
    code, out, err = run("leases", "-o", "json", node=both)
    assert code == Exit.OK
    rows = json.loads(out)
    assert [(row["address"], row["pod"]) for row in rows] == [
        ("10.4.1.7", "default/web-0"),
        ("fd00:4::2", "default/web-0"),
    ]
    assert ("this is from its ledger" in err) == both.down


def test_leases_by_address_in_another_spelling(both, run):
    code, out, _ = run("leases", "--address", "FD00:4:0:0::0002", "-o", "json", node=both)
    assert code == Exit.OK
    assert [row["address"] for row in json.loads(out)] == ["fd00:4::2"]


def test_leases_that_nothing_fits(both, run):
    code, out, err = run("leases", "--pod", "default/nobody", node=both)
    assert (code, out) == (Exit.NOT_FOUND, "")
    assert "no lease fits" in err


def test_explain(both, run):
    code, out, _ = run("explain", "10.4.1.7", node=both)
    assert code == Exit.OK
    assert out.startswith("10.4.1.7 is held by pod default/web-0 in network blue.\n")
    for subject in ("default/web-0", "3f2a"):
        code, out, _ = run("explain", subject, "-o", "json", node=both)
        assert code == Exit.OK
        assert [facts["address"] for facts in json.loads(out)["addresses"]] == ["10.4.1.7", "fd00:4::2"]


def test_explain_says_who_had_what_is_free_now(both, run):
    code, out, _ = run("explain", "10.4.1.2", node=both)
    assert code == Exit.OK
    assert "Last it was held by pod default/web-1" in out
    assert "the runtime deleted the container" in out


@pytest.mark.parametrize(
    ("subject", "tip"),
    [
        ("192.0.2.1", "lies in no network here (blue)"),
        ("default/nobody", "`allotment leases` shows all pods"),
        ("beef", "For a pod write NAMESPACE/POD"),
    ],
)
def test_explain_what_nobody_knows(both, run, subject, tip):
    code, out, err = run("explain", subject, node=both)
    assert (code, out) == (Exit.NOT_FOUND, "")
    assert tip in " ".join(err.split())


def test_a_pod_without_a_namespace_is_found_by_its_name_behind_a_slash(node, run):
    """podman's containers: they are shown as /NAME, so they can be asked for so, up and down."""
    node.run(node.world.give("5ae4f04559c4", "/db", ips=("10.4.1.77",)))
    for down in False, True:
        if down:
            node.go_away()
        code, out, _ = run("explain", "/db", node=node)
        assert (code, out.splitlines()[0]) == (Exit.OK, "Pod /db holds 2 addresses.")
        for words in ("leases", "--pod", "/db"), ("history", "--pod", "/db"):
            code, out, _ = run(*words, node=node)
            assert (code, "10.4.1.77" in out, "web-0" in out) == (Exit.OK, True, False)


def test_nothing_is_not_everything(both, run):
    code, out, err = run("explain", "", node=both)
    assert (code, out) == (Exit.USAGE, "")
    assert "nothing to explain" in err


@pytest.mark.parametrize("words", [("explain", "10.4.1.007"), ("leases", "--pod", "web"), ("history", "--at", "noon")])
def test_a_malformed_question_is_a_usage_error(both, run, words):
    code, _, err = run(*words, node=both)
    assert code == Exit.USAGE
    assert "write" in err


def test_history(both, run):
    code, out, _ = run("history", "--pod", "default/web-1", "-o", "json", node=both)
    assert code == Exit.OK
    assert {(row["address"], row["cause"]) for row in json.loads(out)} == {("10.4.1.2", "del"), ("fd00:4::3", "del")}


def test_history_at_a_time_finds_who_holds_it_still(both, run):
    """'Who had 10.4.1.7 at …?'"""
    ask = ("history", "--address", "10.4.1.7", "-o", "json", "--at")
    code, out, _ = run(*ask, "2023-11-14T22:13:21Z", node=both)
    assert code == Exit.OK
    assert [row["pod"] for row in json.loads(out)] == ["default/web-0"]
    code, out, _ = run(*ask, "2023-11-14 22:13", node=both)
    assert (code, json.loads(out)) == (Exit.NOT_FOUND, [])


def test_utilization(both, run):
    code, out, _ = run("utilization", "-o", "json", node=both)
    assert code == Exit.OK
    v6 = next(row for row in json.loads(out) if row["block"] == "fd00:4::/64")
    assert (v6["inUse"], v6["capacity"]) == ("1", str(2**64 - 1))
    assert run("utilization", "--network", "red", node=both)[0] == Exit.NOT_FOUND


def test_status_with_the_agent_up(node, run):
    code, out, _ = run("status", "-o", "json", node=node)
    assert (code, json.loads(out)["problems"]) == (Exit.OK, [])
    node.world.not_ready = "the ledger is being rebuilt"
    code, out, _ = run("status", node=node)
    assert code == Exit.PROBLEM
    assert out.startswith("1 problem:\n  ! the agent isn't ready: the ledger is being rebuilt\n")


def test_status_with_the_agent_down_says_so_and_tells_what_it_left(node, run):
    node.go_away()
    code, out, err = run("status", node=node)
    assert code == Exit.PROBLEM
    assert "the agent is down" in out
    assert "last written" in out
    assert "2 held, 2 resting" in out
    assert err == ""
    assert "serving" in out


def test_with_neither_agent_nor_ledger_each_command_says_both(tmp_path, run):
    world = World(tmp_path)
    for words in (("leases",), ("explain", "10.4.1.7"), ("history",), ("utilization",), ("gc",)):
        code, _, err = run(*words, world=world)
        assert code == Exit.UNREACHABLE
        assert "there is no such socket" in err
        assert "there is no ledger" in err
    code, out, _ = run("status", world=world)
    assert code == Exit.PROBLEM
    assert "there is no ledger" in out
    code, out, _ = run("doctor", world=world)
    assert code == Exit.PROBLEM
    assert "name the agent's folder with --state-dir" in " ".join(out.split()).lower()
    assert "damaged" not in out


# -- gc


def test_gc_shows_and_frees_nothing_without_yes(node, run):
    (node.world.settings.netns_dir[0] / "other").symlink_to("/proc/self/ns/net")
    node.run(node.world.give("other"))
    node.world.clock.advance(200)
    # The command's clock is the machine's: its boot ID is another than this node's, so nothing is a leftover here.
    code, out, err = run("gc", node=node)
    assert (code, out) == (Exit.OK, "")
    assert "nothing to free: no lease that is 120 s old has lost its network namespace" in err
    code, out, err = run("gc", "--container", "beef", node=node)
    assert (code, out) == (Exit.NOT_FOUND, "")
    assert "nothing to free: no lease fits" in err
    code, out, err = run("gc", "--container", "3f2a", node=node)
    assert code == Exit.OK
    assert "10.4.1.7" in out
    assert "--yes frees them" in err
    assert len(list(node.world.book.leases())) == 4


def test_gc_frees_what_an_operator_names(node, run):
    code, out, _ = run("gc", "--yes", "--address", "10.4.1.7", "-o", "json", node=node)
    assert code == Exit.OK
    freed = [(row["address"], row["outcome"]) for row in json.loads(out)]
    assert freed == [("10.4.1.7", "freed"), ("fd00:4::2", "freed")], "a pod has both of its addresses, or none"
    assert list(node.world.book.leases()) == []
    _, out, _ = run("history", "--address", "10.4.1.7", "-o", "json", node=node)
    assert json.loads(out)[0]["cause"] == "operator"


def test_gc_of_an_address_leaves_other_attachments_alone(node, run):
    node.run(node.world.give("88bb9c81d0b4", "default/web-2"))
    code, out, _ = run("gc", "--dry-run", "--address", "fd00:4::2", "-o", "json", node=node)
    assert code == Exit.OK
    assert [row["address"] for row in json.loads(out)] == ["10.4.1.7", "fd00:4::2"]
    assert run("gc", "--yes", "--address", "fd00:4::2", node=node)[0] == Exit.OK
    assert {lease.owner.container_id for lease in node.world.book.leases()} == {"88bb9c81d0b4"}


def test_gc_refuses_to_free_an_address_that_is_in_use(node, run):
    """I1"""
    place = node.world.settings.netns_dir[0] / "3f2a9c81d0b4"
    place.symlink_to("/proc/self/ns/net")
    code, _, err = run("gc", "--yes", "--container", "3f2a9c81d0b4", node=node)
    assert code == Exit.USAGE
    assert "would be given to another" in err
    assert len(list(node.world.book.leases())) == 2
    code, _, _ = run("gc", "--yes", "--force", "--container", "3f2a9c81d0b4", node=node)
    assert code == Exit.OK
    assert list(node.world.book.leases()) == []


def test_gc_never_writes_the_ledger_itself(node, run):
    node.go_away()
    code, _, err = run("gc", "--yes", "--address", "10.4.1.7", node=node)
    assert code == Exit.UNREACHABLE
    assert "agent" in err
    code, out, _ = run("leases", "--address", "10.4.1.7", node=node)
    assert code == Exit.OK
    assert "web-0" in out


# -- doctor


@pytest.fixture
def outside(node, monkeypatch):
    """What is outside of the node's own folders is this node's alone, too."""
    monkeypatch.setenv("ALLOTMENT_NETNS_DIR", str(node.world.settings.netns_dir[0]))
    monkeypatch.setenv("ALLOTMENT_CNI_CACHE_DIR", str(node.world.settings.cni_cache_dir))


def test_doctor_finds_nothing_wrong_with_a_node_that_is_well(node, outside, run, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # no kernel here: the pod's namespace is this process's own
    (node.world.settings.netns_dir[0] / "3f2a9c81d0b4").symlink_to("/proc/self/ns/net")
    boot = node.world.settings.state_dir / "boot_id"
    boot.write_text(node.world.clock.boot)
    monkeypatch.setenv("ALLOTMENT_BOOT_ID_FILE", str(boot))
    code, out, _ = run("doctor", "--ballast-mib", "0", "-o", "json", node=node)
    examined = json.loads(out)
    assert (code, examined["findings"]) == (Exit.OK, [])
    assert "memory against disk" in examined["checked"]
    assert [skipped["check"] for skipped in examined["skipped"]] == ["kernel"]


def test_doctor_works_with_the_agent_down(node, outside, run):
    node.go_away()
    code, out, _ = run("doctor", "-o", "json", node=node)
    examined = json.loads(out)
    assert code == Exit.PROBLEM
    assert "ledger" in examined["checked"]
    assert {"check": "memory against disk", "why": "the agent is down"} in examined["skipped"]
    assert examined["findings"][0]["check"] == "socket"


def test_doctor_looks_at_the_plugin(node, outside, run, tmp_path):
    code, out, _ = run("doctor", "--bin-dir", str(tmp_path / "bin"), "-o", "json", node=node)
    assert code == Exit.PROBLEM
    assert any(finding["check"] == "plugin" for finding in json.loads(out)["findings"])


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize(("local", "state"), [(True, "never used"), (False, "by claim")])
def test_whether_an_address_of_an_l2_network_is_free_is_for_the_cluster_to_say(tmp_path, run, local, state, down):
    flat = network(type="L2", subnets=[{"cidr": "10.4.1.0/24"}])
    marker = allocation(flat)
    marker["spec"]["blocks"] = []
    with served(tmp_path, flat, marker, local_l2=local) as node:
        if down:
            node.go_away()
        code, out, _ = run("explain", "10.4.1.9", "-o", "json", node=node)
        assert (code, [one["state"] for one in json.loads(out)["addresses"]]) == (Exit.OK, [state])
