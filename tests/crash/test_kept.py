"""DELs that were kept while nobody answered, and what comes after them."""

import pytest

import agents
from agents import Agent, Launcher
from crash.world import MANIFESTS
from nodes import until

PODS = 60


@pytest.fixture
def agent():
    with Launcher() as launcher, Agent(launcher, manifests=MANIFESTS) as agent:
        agent.start()
        yield agent


def end(shims):
    return [(shim.communicate(timeout=agents.PATIENCE)[0], shim.returncode) for shim in shims]


def test_a_container_that_comes_back_keeps_what_it_is_given_then(agent):
    """Restarted containers have the same ID again (podman, nerdctl): their DEL, kept before, doesn't mean that ADD."""
    containers = [f"c{number}" for number in range(PODS)]
    before = {container: agents.told(agent.ask("ADD", container).body) for container in containers}
    agent.kill()
    kept = end([agent.shim("DEL", container, timeout_ms=200) for container in containers])
    assert kept == [(b"", 0)] * PODS
    shims = [agent.shim("ADD", container) for container in containers]
    agent.start()
    answers = end(shims)
    until(lambda: not list(agent.spool.glob("*.del")), "the spool is not replayed")
    held = agent.held()
    for container, (body, code) in zip(containers, answers, strict=True):
        assert code == 0, body
        assert held.get(("blue", container)) == agents.told(body)
        assert agents.told(body) != before[container], "its lease had ended: within the cooldown it can't be the same"
