"""What the agent's process loads: modules that it holds for good and never uses cost megabytes on every node."""

import subprocess
import sys

import pytest

CLUSTER = "import allotment.cli.agent, allotment.node.cluster, allotment.cri.runtime, allotment.net.namespaces"
STANDALONE = "import allotment.cli.agent, allotment.node.manifests.source"


def loaded(imports):
    """The names of all modules that are there after these imports, in a process of their own."""
    code = f"{imports}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("imports", "unwanted"),
    [
        pytest.param(
            CLUSTER, {"pyroute2", "yaml", "kubernetes_asyncio", "allotment.node.manifests.source"}, id="in a cluster"
        ),
        pytest.param(STANDALONE, {"pyroute2", "aiohttp", "kubernetes_asyncio", "allotment.kube.client"}, id="alone"),
    ],
)
def test_an_agent_loads_nothing_that_only_another_kind_needs(imports, unwanted):
    assert loaded(imports) & unwanted == set()


def test_the_machines_certificate_authorities_are_not_held_for_a_cluster_that_has_its_own():
    code = (
        "import os; before = dict(os.environ); import allotment.kube.session, gc, ssl\n"
        "found = [each for each in gc.get_objects() if isinstance(each, ssl.SSLContext)]\n"
        "found += [each for each in vars(allotment.kube.session.aiohttp.connector).values()"
        " if isinstance(each, ssl.SSLContext)]\n"
        "assert found\n"
        "print(max(each.cert_store_stats()['x509'] for each in found), before == dict(os.environ))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
