"""The yardstick itself: host-local, driven by our runtime, behaves as the CNI specification says it should."""

import pytest

from reference.driver import CniError, Runtime
from reference.fixtures import debian_plugins, reference_plugins  # noqa: F401  # fixtures

pytestmark = pytest.mark.slow  # the first run builds it


@pytest.fixture(params=["reference_plugins", "debian_plugins"])
def runtime(request, tmp_path):
    ipam = {"type": "host-local", "dataDir": str(tmp_path / "data"), "ranges": [[{"subnet": "10.1.2.0/30"}]]}
    conflist = {"cniVersion": "1.0.0", "name": "blue", "plugins": [{"type": "host-local", "ipam": ipam}]}
    return Runtime(tmp_path, [request.getfixturevalue(request.param)], conflist)


def test_host_local_gives_checks_takes_back_and_runs_dry(runtime):
    netns = "/run/netns/nobody"
    result = runtime.add("c1", netns)
    assert result["ips"] == [{"address": "10.1.2.2/30", "gateway": "10.1.2.1"}]
    runtime.check("c1", netns)
    with pytest.raises(CniError, match="no IP addresses available"):
        runtime.add("c2", netns)
    runtime.delete("c1")
    runtime.delete("c1")
    assert runtime.add("c2", netns)["ips"][0]["address"] == "10.1.2.2/30"


def test_gc_sends_a_del_for_each_attachment_that_is_not_valid(runtime):
    runtime.add("c1", "/run/netns/nobody")
    runtime.gc([("c1", "eth0")])
    with pytest.raises(CniError):
        runtime.add("c2", "/run/netns/nobody")
    runtime.gc([])
    runtime.add("c2", "/run/netns/nobody")


def test_a_runtime_that_lost_its_cache_has_nothing_to_collect(runtime):
    runtime.add("c1", "/run/netns/nobody")
    runtime.forget()
    runtime.gc(None)
    with pytest.raises(CniError):
        runtime.add("c2", "/run/netns/nobody")
