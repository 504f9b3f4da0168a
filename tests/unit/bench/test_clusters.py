"""What the scenarios of clusters read out of an audit log, and how they are chosen."""

from __future__ import annotations

import argparse

import pytest

from bench import __main__ as command
from bench.crowd import pod
from bench.served import watched, writes
from cluster.access import Audited

BASE = "/apis/allotment.dev/v1alpha1"


def audited(verb, path):
    return Audited(user="agent", verb=verb, path=path, status=200, user_agent="")


REQUESTS = [
    audited("list", f"{BASE}/allocations?fieldSelector=spec.node%3Dn1&limit=500"),
    audited("watch", f"{BASE}/allocations?watch=1&fieldSelector=spec.node%3Dn1&resourceVersion=7"),
    audited("watch", f"{BASE}/networks?watch=1&resourceVersion=7"),
    audited("patch", f"{BASE}/allocations/blue.n1/status"),
    audited("get", f"{BASE}/networks/blue"),
]


def test_watches_are_told_with_what_they_select():
    assert watched(REQUESTS) == {"allocations": "spec.node=n1", "networks": ""}


def test_writes_are_what_changes_something():
    assert writes(REQUESTS) == [REQUESTS[3]]


def test_the_scenarios_of_a_cluster_are_chosen_together():
    names = command._names(argparse.ArgumentParser(), "size,cluster")
    assert names == ["size", "pods", "drain", "idle", "foreign"]
    assert set(names) <= set(command.SCENARIOS)


def test_an_unknown_scenario_is_refused(capsys):
    with pytest.raises(SystemExit):
        command._names(argparse.ArgumentParser(), "clusters")
    assert "clusters" in capsys.readouterr().err


def test_a_pod_of_the_crowd_is_bound_to_its_node():
    assert pod("web-1", "n7")["spec"]["nodeName"] == "n7"
