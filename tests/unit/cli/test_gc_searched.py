"""`allotment gc` where the agent searches for orphans itself: it shows, and frees, what the agent decides."""

import json

import pytest
from structlog.testing import CapturingLogger

from allotment.cli import Exit, main
from allotment.cri.messages import Sandbox
from allotment.cri.runtime import Runtime
from allotment.node.notices.board import Notices
from allotment.node.orphans.search import OrphanSearch
from allotment.observe.metrics import Metrics
from allotment.testing.cri import FakeRuntime, Fault
from looking import allocation, flags, network, served

BLUE = network()


@pytest.fixture
def node(tmp_path):
    """A node with a runtime: web-0 runs, web-1 has gone without a DEL, and so has a container that is no pod."""
    with FakeRuntime(tmp_path / "cri.sock") as fake, served(tmp_path, BLUE, allocation(BLUE)) as node:
        world = node.world
        for container, pod in (("c0c0", "shop/web-0"), ("c1c1", "shop/web-1"), ("c2c2", "")):
            node.run(world.give(container, pod))
        fake.start(Sandbox("c0c0", name="web-0", namespace="shop", uid="uid-web-0", ready=True))
        world.clock.advance(200)
        world.queries._orphans = OrphanSearch(
            world.book,
            world.attachments,
            world.clock,
            Metrics("1"),
            CapturingLogger(),
            Notices(Metrics("1")),
            runtime=lambda: Runtime(fake.path, timeout=0.5),
        )
        node.fake = fake
        yield node


@pytest.fixture
def run(capsys, node, monkeypatch):
    """Runs `allotment gc`; half a minute of its waiting is one of the node's, and none of ours."""

    async def waited(clock, seconds):
        node.world.clock.advance(seconds)

    monkeypatch.setattr("allotment.observe.clock.SystemClock.sleep", waited)

    def run(*words):
        code = main(["gc", *flags(node.world), *words])
        out = capsys.readouterr()
        return code, out.out, " ".join(out.err.split())

    return run


def shown(out):
    return sorted((row["address"], row["outcome"]) for row in json.loads(out))


def held(node):
    return {lease.owner.container_id for lease in node.world.book.leases()}


def test_a_dry_run_shows_what_the_agent_suspects_and_then_what_it_would_free(node, run):
    code, out, err = run("--dry-run")
    assert code == Exit.OK
    assert "10.4.1.3" in out
    assert "10.4.1.2" not in out
    assert out.count("suspected") == 2
    assert "nothing was freed" in err
    node.world.clock.advance(30)
    code, out, _ = run("-o", "json")
    rows = json.loads(out)
    assert {(row["pod"], row["outcome"]) for row in rows} == {("shop/web-1", "to be freed")}
    assert all(row["why"].endswith("in looks 30 s apart") for row in rows)
    assert held(node) == {"c0c0", "c1c1", "c2c2"}


def test_yes_frees_what_two_looks_agree_on(node, run):
    code, out, err = run("--yes", "-o", "json")
    assert "looking again in 30 s" in err
    assert code == Exit.OK
    assert shown(out) == [("10.4.1.3", "freed"), ("fd00:4::3", "freed")]
    assert held(node) == {"c0c0", "c2c2"}
    code, out, err = run("--yes")
    assert (code, out) == (Exit.OK, "")
    assert "no lease that is 120 s old has lost its owner" in err


def test_only_the_network_that_is_named(node, run):
    code, out, _ = run("--yes", "--network", "red", "-o", "json")
    assert (code, json.loads(out)) == (Exit.OK, [])


def test_a_runtime_without_an_answer_is_said_and_nothing_is_freed(node, run):
    node.fake.fault = Fault.ERROR
    code, out, err = run("--yes")
    assert (code, out) == (Exit.OK, "")
    assert "whether pods are gone can't be told now" in err
    assert "the store is locked" in err
    assert held(node) == {"c0c0", "c1c1", "c2c2"}


def test_what_may_be_in_use_is_shown_and_kept(node, run):
    _, out, _ = run("-o", "json")
    assert all(row["why"].endswith("freed if a look 30 s later shows the same") for row in json.loads(out))
    (node.world.settings.netns_dir[0] / "c1c1").symlink_to("/proc/self/ns/net")
    node.world.clock.advance(600)
    code, out, _ = run("--yes", "-o", "json")
    assert code == Exit.PROBLEM
    assert shown(out) == [("10.4.1.3", "kept"), ("fd00:4::3", "kept")]
    assert held(node) == {"c0c0", "c1c1", "c2c2"}
    assert run("--yes", "--force", "--container", "c1c1")[0] == Exit.OK
    assert held(node) == {"c0c0", "c2c2"}


def test_with_the_agent_down_it_is_as_without_a_search(node, run):
    node.go_away()
    code, _, err = run("--dry-run")
    assert code == Exit.OK
    assert "lost its network namespace" in err
    code, _, err = run("--yes")
    assert code == Exit.UNREACHABLE
    assert "no agent listens" in err.lower()
