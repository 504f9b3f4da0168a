"""The agent behind a line and a proxy that fail as networks and API servers do: it serves on, and gets into step again.

After each fault the node still does what its Allocation says, by its watch: the proof is a change that comes after it.
"""

import collections
import re
import urllib.request

import pytest

from agents import PATIENCE, now, told
from kube.agent_fixtures import name
from kube.cluster_agent import GUARD, OURS, ClusterAgent, allocation, create, delete, get, network, patch
from kube.line import Line
from kube.proxy import Proxy
from nodes import until

__all__ = ["name"]

ALLOCATIONS = "/allocations"
OWN = r"/allocations\?"
"""The agent's list and its watch; what goes to one object has a name behind the slash."""


class Behind:
    """The agent behind a Line and, behind that, a Proxy, with one network that it has given an address of."""

    def __init__(self, server, name, agent, proxy, line):
        self.server, self.node, self.agent, self.proxy, self.line = server, name, agent, proxy, line
        self.net = f"n{name}"
        self.allocation = f"{self.net}.{name}"
        self.pods = {}
        self._numbers = iter(range(1000))

    def admit(self):
        """Have the controller's part done."""
        made = create(self.server, network(self.net))
        create(self.server, allocation(made, self.node, "10.71.0.0/26"))

    def give(self):
        """A new pod's address, which nobody else has (I1)."""
        container = f"c{next(self._numbers)}"
        reply = self.agent.ask("ADD", container, network=self.net)
        assert not reply.exit_code, reply.body
        self.pods[container] = told(reply.body)
        taken = collections.Counter(address for addresses in self.pods.values() for address in addresses)
        assert max(taken.values()) == 1, self.pods

    def free_all(self):
        for container in self.pods:
            assert not self.agent.ask("DEL", container, network=self.net).exit_code
        self.pods.clear()

    def told(self):
        """The Allocation, as the API server has it; None if there is none."""
        return get(self.server, "allocations", self.allocation)

    def finalizers(self):
        found = self.told()
        return None if found is None else found["metadata"].get("finalizers", [])

    def in_step(self, limit=PATIENCE):
        """The agent does what the Allocation comes to say, keeps what it has given, and has given nothing else."""
        for closed in (True, False):
            assert patch(self.server, "allocations", self.allocation, {"spec": {"closed": closed}})[0] == 200
            until(lambda closed=closed: self.gives() is not closed, f"closed: {closed} is not taken up", limit=limit)
        assert {container: addresses for (_, container), addresses in self.agent.held().items()} == self.pods

    def gives(self):
        """Whether a pod would get an address; it gives that back."""
        reply = self.agent.ask("ADD", "probe", network=self.net)
        assert not self.agent.ask("DEL", "probe", network=self.net).exit_code
        return not reply.exit_code

    def drain(self):
        """I5: with the last pod the finalizer goes."""
        delete(self.server, "allocations", self.allocation)
        until(lambda: not self.gives(), "it does not drain")
        self.free_all()
        until(lambda: self.finalizers() == [GUARD], "the finalizer does not go")

    def watches(self):
        return [path for path in self.proxy.watches if ALLOCATIONS in path]

    def until_watching(self):
        until(self.watches, "nobody watches")

    def lists(self):
        """How often the agent says that it has read the whole list of its Allocations."""
        (port,) = re.findall(r'"event":"serving http".*"port":(\d+)', self.agent.log(1 << 20))[-1:]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = re.findall(r'^allotment_source_lists_total\{kind="allocations"\} (\S+)$', text, re.MULTILINE)
        return float(found[0]) if found else 0.0


@pytest.fixture
def stage(launcher, server, name):
    """An agent that has begun, and nothing that it could serve yet."""
    with (
        Proxy(server) as proxy,
        Line("127.0.0.1", proxy.port) as line,
        ClusterAgent(launcher, server, name, url=line.url, flags=["--http", "127.0.0.1:0"]) as agent,
    ):
        agent.start()
        yield Behind(server, name, agent, proxy, line)


@pytest.fixture
def behind(stage):
    """An agent that serves, with one pod."""
    stage.admit()
    stage.give()
    stage.until_watching()
    return stage


def gone_as_answer(behind):
    """The watch begins anew and is told 410, then the list that follows is as well, in one piece and in pages."""
    behind.proxy.answer(410, path=OWN, watch=True)
    behind.proxy.answer(410, path=OWN, watch=False, times=2)
    behind.proxy.end_watches()


def gone_within_the_stream(behind):
    assert behind.proxy.inject_gone(OWN) == 1


def gone_again_and_again(behind):
    behind.proxy.answer(410, path=OWN, watch=True, times=3)
    behind.proxy.inject_gone()


@pytest.mark.parametrize("fault", [gone_as_answer, gone_within_the_stream, gone_again_and_again])
def test_410_makes_it_list_again_and_counts(behind, fault):
    before = behind.lists()
    fault(behind)
    until(lambda: behind.lists() > before, "it has not listed again")
    behind.in_step()


def cut(behind):
    behind.line.cut()


def finished(behind):
    behind.line.finish()


def ended(behind):
    assert behind.proxy.end_watches() >= 5


def torn_event(behind):
    behind.proxy.tear_events(path=OWN, times=2)


def torn_list(behind):
    behind.proxy.tear_answers(path=OWN, times=2)
    behind.proxy.inject_gone()


def refused(behind):
    behind.line.down()
    behind.line.cut()
    behind.give()
    behind.line.up()


@pytest.mark.parametrize("fault", [cut, finished, ended, torn_event, torn_list, refused])
def test_a_line_that_breaks_is_made_anew_and_nothing_is_missed(behind, fault):
    """I11, I12."""
    fault(behind)
    behind.give()
    behind.in_step()


def test_what_stalls_comes_later(behind):
    """I12: what pods need does not wait for it."""
    behind.line.stall()
    patch(behind.server, "allocations", behind.allocation, {"spec": {"closed": True}})
    behind.give()
    behind.line.flow()
    until(lambda: not behind.gives(), "it is not closed")
    behind.in_step()


def test_events_in_the_wrong_order_end_in_what_is_true(behind):
    behind.proxy.swap_events(path=OWN)
    for closed in (True, False, True):
        patch(behind.server, "allocations", behind.allocation, {"spec": {"closed": closed}})
    until(lambda: not behind.gives(), "it believes the older one")
    behind.in_step()


@pytest.mark.parametrize("status", [500, 503, 504, 401, 403, 404])
def test_a_server_that_refuses_everything_for_a_while_changes_nothing(behind, status):
    """I12, I15: no refusal is taken for there being nothing."""
    behind.proxy.answer(status, times=None)
    behind.proxy.end_watches()
    asked = len(behind.proxy.asked)
    until(lambda: len(behind.proxy.asked) > asked + 5, "it does not ask again")
    behind.give()
    behind.proxy.heal()
    behind.in_step()


@pytest.mark.slow
def test_who_is_told_when_to_come_back_comes_no_earlier(behind):
    behind.proxy.answer(429, retry_after=3, path=OWN, times=1)
    behind.proxy.end_watches(OWN)
    until(lambda: asked(behind)[-1:] == [429], "it is not asked")
    began = now()
    behind.give()
    until(lambda: asked(behind)[-1] == 200, "it does not come back")
    assert now() - began > 2  # less what the asking above took to notice
    behind.in_step()


def asked(behind):
    """What the agent was told of its Allocations as a whole, in order."""
    return [each.status for each in behind.proxy.asked if re.search(OWN, each.target) and each.status]


@pytest.mark.parametrize("times", [1, 2])
def test_a_list_that_is_empty_by_mistake_is_asked_for_again(behind, times):
    """I15."""
    behind.proxy.empty_lists(path=OWN, times=times)
    behind.proxy.inject_gone(OWN)
    until(lambda: behind.proxy.watches and len(asked(behind)) > times, "it has not listed")
    behind.give()
    behind.in_step()


@pytest.mark.slow
def test_lists_that_are_empty_for_long_end_nothing_that_is_given(behind):
    """I15, I5: not even an agent that starts then believes it at once; what it holds, it holds."""
    before = dict(behind.pods)
    behind.proxy.empty_lists(times=4)
    behind.agent.kill()
    behind.agent.start()
    behind.give()
    assert before.items() <= behind.pods.items()
    behind.in_step()


def test_the_finalizer_goes_on_though_the_answer_to_it_is_lost(stage):
    """I4."""
    stage.proxy.lose_answers(method="PATCH", path=f"{ALLOCATIONS}/")
    stage.admit()
    stage.give()
    assert set(stage.finalizers()) == {GUARD, OURS}
    stage.in_step()


@pytest.mark.parametrize("look", [500, 0])
def test_the_finalizer_goes_on_though_nothing_can_be_learnt_of_it_at_first(stage, look):
    """I4: the answer is lost, and so is that to the look which follows."""
    stage.proxy.lose_answers(method="PATCH", path=f"{ALLOCATIONS}/")
    if look:
        stage.proxy.answer(look, method="GET", path=f"{ALLOCATIONS}/")
    else:
        stage.proxy.lose_requests(method="GET", path=f"{ALLOCATIONS}/")
    stage.admit()
    stage.give()
    assert set(stage.finalizers()) == {GUARD, OURS}
    stage.in_step()


def test_a_status_is_told_though_answers_to_it_are_lost(stage):
    """I14."""
    stage.proxy.lose_answers(method="PATCH", path="/status", times=2)
    stage.admit()
    stage.give()
    until(lambda: stage.told().get("status", {}).get("ledgerID"), "no status is told")
    stage.in_step()


@pytest.mark.parametrize("lost", ["answer", "request", "answer and look", "conflict", "too many"])
def test_the_last_pod_s_end_frees_the_allocation_whatever_becomes_of_the_write(behind, lost):
    """I5, I14."""
    write = {"method": "PATCH", "path": f"{ALLOCATIONS}/[^/]*$|{ALLOCATIONS}/[^/]*\\?"}
    match lost:
        case "answer":
            behind.proxy.lose_answers(**write)
        case "request":
            behind.proxy.lose_requests(**write)
        case "answer and look":
            behind.proxy.lose_answers(**write)
            behind.proxy.lose_requests(method="GET", path=f"{ALLOCATIONS}/")
        case "conflict":
            behind.proxy.answer(409, **write)
        case _:
            behind.proxy.answer(429, retry_after=1, **write)
    behind.drain()
    patch(behind.server, "allocations", behind.allocation, {"metadata": {"finalizers": []}})
    until(lambda: behind.finalizers() is None, "the Allocation stays")


@pytest.mark.slow
def test_in_a_black_hole_pods_are_served_and_a_new_line_is_found(behind):
    """I12. Everything is acknowledged and nothing answered: only limits of our own can tell."""
    behind.line.blackhole()
    behind.give()
    patch(behind.server, "allocations", behind.allocation, {"spec": {"closed": True}})
    behind.give()
    behind.line.flow()
    until(lambda: not behind.gives(), "it is not closed", limit=180)
    behind.in_step()
