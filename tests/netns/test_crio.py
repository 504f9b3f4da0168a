"""The CRI client against a real CRI-O: where it differs from containerd, and that nothing of it matters."""

import pytest

from allotment.addressing.errors import TryAgain
from crio.rig import NODE, Crio, is_there

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(not is_there(), reason="needs runc, unshare, ip, Go and a C compiler"),
]


@pytest.fixture(scope="module")
def crio():
    with Crio() as crio:
        yield crio


async def test_it_says_who_it_is(crio):
    version = await crio.runtime.version()
    assert (version.name, version.api) == ("cri-o", "v1")


async def test_what_it_tells_of_a_pod(crio):
    crio.give("10.9.0.7/24", "fd09::7/64")
    identity = await crio.run("web-0", uid="u-1", attempt=3)
    (listed,) = await crio.runtime.sandboxes()
    assert (listed.id, listed.name, listed.namespace, listed.uid) == (identity, "web-0", "shop", "u-1")
    assert (listed.attempt, listed.ready, listed.labels["app"]) == (3, True, "web-0")

    found = await crio.runtime.statuses([identity, "0" * 64])
    assert found.keys() == {identity}, "what is gone is NOT_FOUND, as containerd says"
    status = found[identity]
    assert [str(address) for address in status.ips] == ["10.9.0.7", "fd09::7"]
    assert status.netns.startswith("/var/run/netns/")
    assert not status.host_network
    [(container, arguments)] = [(container, arguments) for verb, container, arguments in crio.asked() if verb == "ADD"]
    assert container == identity, "the ID that the CNI is called with is the sandbox's"
    assert arguments["K8S_POD_UID"] == "u-1"

    await crio.stop(identity)
    [stopped] = (await crio.runtime.statuses([identity])).values()
    assert not stopped.ready
    assert stopped.ips == status.ips, "containerd tells none of a sandbox whose namespace is gone, CRI-O does"
    await crio.remove(identity)
    assert await crio.runtime.sandboxes() == ()
    assert await crio.runtime.statuses([identity]) == {}


async def test_what_it_tells_of_a_pod_in_the_hosts_network(crio):
    """CRI-O mounts the host's namespace for it, where containerd tells of none."""
    identity = await crio.run("proxy", network=NODE)
    try:
        status = (await crio.runtime.statuses([identity]))[identity]
        assert (status.host_network, status.ips) == (True, ())
    finally:
        await crio.stop(identity)
        await crio.remove(identity)


async def test_one_that_is_killed_is_not_taken_for_an_empty_one(crio):
    """I8."""
    crio.kill()
    with pytest.raises(TryAgain, match=str(crio.runtime.socket)):
        await crio.runtime.sandboxes()
