"""Standalone mode from outside: what is in the folder of manifests is what the node does, and nothing else is.

A network is admitted whole or by an Allocation file; files are edited, broken, removed and put back while pods run;
networks drain; the folder itself goes away. How an address is asked for is in test_standalone_asking.py, the process
in test_standalone_process.py.
"""

import json

import pytest

from nodes import allocation, manifest, until

DELETED = "2026-01-02T03:04:05Z"


def network(name="blue", *subnets, layer="L3", cooldown=0, meta=None, **spec):
    """A manifest of a Network; a subnet is its `cidr`, or (cidr, more fields)."""
    entries = []
    for subnet in subnets or ("10.4.0.0/28",):
        cidr, more = subnet if isinstance(subnet, tuple) else (subnet, {})
        length = {"hostPrefixLength": int(cidr.split("/")[1])} if layer == "L3" else {}
        entries.append({"cidr": cidr, **length, **more})
    content = {"type": layer, "cooldownSeconds": cooldown, "subnets": entries, **spec}
    return manifest("Network", name, content, **(meta or {}))


@pytest.fixture
def node_with(make_node):
    """Makes nodes with these manifests, where an ADD that has to wait is soon refused; `told` is what pods have."""

    def make(manifests):
        node = make_node(manifests, flags=["--add-wait", "0.2"])
        node.told = {}
        return node

    return make


@pytest.fixture
def blue(node_with):
    """A node with a small network, admitted whole, and two pods in it."""
    node = node_with({"blue.yaml": network()})
    node.start()
    node.told = {pod: node.give(pod) for pod in ("pod-1", "pod-2")}
    return node


def assert_undisturbed(node):
    """The pods have what they were told."""
    held = {container: addresses for (_, container), addresses in node.held().items()}
    assert {pod: held.get(pod) for pod in node.told} == node.told


# -- admitted


def test_a_network_without_a_file_for_it_is_admitted_whole(node_with):
    node = node_with({"blue.yaml": network("blue", "10.4.0.0/28", "10.5.0.0/30", "fd00:4::/120")})
    node.start()
    record = node.record()
    assert record["own"] is True
    assert record["allocation"]["metadata"]["finalizers"] == ["allotment.dev/node"]
    blocks = [(block["cidr"], block["state"]) for block in record["allocation"]["spec"]["blocks"]]
    assert blocks == [("10.4.0.0/28", "Confirmed"), ("10.5.0.0/30", "Confirmed"), ("fd00:4::/120", "Confirmed")]
    assert node.give("c1") == ("10.4.0.2", "fd00:4::2")
    assert node.network().blocks == ("10.4.0.0/28", "10.5.0.0/30", "fd00:4::/120")
    assert list(node.manifests.iterdir()) == [node.manifests / "blue.yaml"], "the folder of manifests is only read"

    until(lambda: node.record()["allocation"].get("status", {}).get("blocks"), "no status is recorded")
    status = node.record()["allocation"]["status"]
    assert status["ledgerID"]
    assert {"type": "Ready", "status": "True"}.items() <= status["conditions"][0].items()


def test_a_network_that_comes_later_is_admitted_without_a_restart(blue):
    assert blue.refuse("c1", of="red").message.startswith("network red is not known on n1")
    blue.write("red.yaml", network("red", "10.5.0.0/24"))
    blue.serving("red")
    assert blue.give("c1", of="red") == ("10.5.0.2",)
    assert_undisturbed(blue)


def test_an_allocation_file_gives_its_blocks_and_no_more(node_with):
    node = node_with(
        {
            "blue.yaml": network("blue", ("10.4.0.0/24", {"hostPrefixLength": 30})),
            "blue.n1.yaml": allocation("blue", "10.4.0.8/30", "10.4.0.16/30"),
            "blue.n2.yaml": allocation("blue", "10.4.0.32/30", node="n2"),
            "red.yaml": network("red", "10.5.0.0/24"),
            "red.n2.yaml": allocation("red", "10.5.0.0/24", node="n2"),
        }
    )
    node.start()
    node.serving()
    assert node.finalizers() == ["allotment.dev/node"]
    assert [node.give("c1"), node.give("c2")] == [("10.4.0.10",), ("10.4.0.18",)]
    assert "2 of 2 in use, 0 cooling, 2 of 2 blocks" in node.refuse("c3").message
    refused = node.refuse("c1", of="red")
    assert refused.code == 11
    assert "Allocation files give it to other nodes (n2 …) and none to n1" in refused.message


# -- edited


def test_an_exclusion_takes_effect_at_once_and_takes_nothing_away(blue):
    blue.write("blue.yaml", network("blue", ("10.4.0.0/28", {"exclude": ["10.4.0.3", "10.4.0.4/30"]})))
    until(lambda: blue.cli("utilization")[0]["reserved"] == "6", "the exclusion is not seen")
    assert_undisturbed(blue)
    assert [blue.give(f"c{number}")[0] for number in range(3)] == ["10.4.0.8", "10.4.0.9", "10.4.0.10"]
    assert "is excluded by network blue" in blue.refuse("c9", config={"runtimeConfig": {"ips": ["10.4.0.5"]}}).message
    blue.free("pod-2")
    blue.give("again")
    assert "10.4.0.3" not in {lease.address for lease in blue.leases()}, "an excluded address was given again"

    blue.write("blue.yaml", network())
    until(lambda: blue.cli("utilization")[0]["reserved"] == "1", "the end of the exclusion is not seen")
    assert blue.give("c9", config={"runtimeConfig": {"ips": ["10.4.0.5"]}}) == ("10.4.0.5",)


def test_a_cooldown_takes_effect_on_what_rests_already(node_with):
    node = node_with({"blue.yaml": network("blue", "10.4.0.4/30", cooldown=1000)})
    node.start()
    node.give("c1")
    node.free("c1")
    assert "1 cooling (next in" in node.refuse("c2").message
    node.write("blue.yaml", network("blue", "10.4.0.4/30", cooldown=0))
    until(lambda: node.call("ADD", "c2").ok, "the shorter cooldown is not seen")
    node.write("blue.yaml", network("blue", "10.4.0.4/30", cooldown=1000))
    until(lambda: node.cli("explain", "10.4.0.6")["addresses"][0]["cooldown"] == 1000, "the longer one is not seen")
    node.free("c2")
    assert node.refuse("c3").code == 101


def test_a_further_subnet_is_given_from_once_the_first_is_full(node_with):
    node = node_with({"blue.yaml": network("blue", "10.4.0.4/30")})
    node.start()
    node.told = {"pod-1": node.give("pod-1")}
    assert node.refuse("c1").code == 101
    node.write("blue.yaml", network("blue", "10.4.0.4/30", "10.5.0.0/29"))
    until(lambda: node.call("ADD", "c1").ok, "the further subnet is not seen")
    assert "10.5.0.2" in {lease.address for lease in node.leases()}
    assert_undisturbed(node)
    node.write("blue.yaml", network("blue", "10.4.0.4/30", "10.5.0.0/29", "fd00:4::/120"))
    until(lambda: len(node.network().blocks) == 3, "the subnet of the other family is not seen")
    assert node.give("c2") == ("10.5.0.3", "fd00:4::2")
    assert node.give("c1") == ("10.5.0.2",), "an older lease is as it was"
    assert_undisturbed(node)


def test_a_gateway_can_be_moved_and_no_lease_is_disturbed(node_with):
    """On L2, where a person chooses it. The old one may be given then; on a lease it may lie as well."""

    def lan(gateway):
        return network("lan", ("10.6.0.0/28", {"gateway": gateway}), layer="L2")

    node = node_with({"lan.yaml": lan("10.6.0.1")})
    node.start()
    node.told = {"pod-1": node.give("pod-1", of="lan")}
    assert node.told["pod-1"] == ("10.6.0.2",)
    node.write("lan.yaml", lan("10.6.0.3"))
    until(lambda: node.cli("explain", "10.6.0.3")["addresses"][0]["state"] == "gateway", "the move is not seen")
    assert node.call("ADD", "pod-1", of="lan").body["ips"] == [{"address": "10.6.0.2/28", "gateway": "10.6.0.3"}]
    assert node.give("pod-2", of="lan") == ("10.6.0.1",)
    assert node.give("pod-3", of="lan") == ("10.6.0.4",)
    node.write("lan.yaml", lan("10.6.0.2"))
    until(lambda: node.cli("explain", "10.6.0.2")["addresses"][0]["heldBack"], "the move is not seen")
    assert_undisturbed(node)


@pytest.fixture
def closing(node_with):
    """A node with two subnets, of which one is closed and has a pod."""
    node = node_with({"blue.yaml": network("blue", "10.4.0.0/29", "10.5.0.0/29")})
    node.start()
    node.told = {"pod-1": node.give("pod-1")}
    node.write("blue.yaml", network("blue", ("10.4.0.0/29", {"closed": True}), "10.5.0.0/29"))
    until(lambda: node.cli("utilization")[1]["gives"] is False, "the closing is not seen")
    return node


def test_a_closed_subnet_gives_nothing_new_and_can_not_be_removed_while_it_is_in_use(closing):
    assert_undisturbed(closing)
    assert closing.give("c1") == ("10.5.0.2",)
    refused = closing.refuse("c2", config={"runtimeConfig": {"ips": ["10.4.0.4"]}})
    assert (refused.code, "gives nothing new" in refused.message) == (102, True)
    assert closing.give("pod-1") == closing.told["pod-1"]

    closing.write("blue.yaml", network("blue", "10.5.0.0/29"))
    [(file, line, message)] = until(closing.problems, "the removal is not refused")
    assert (file, line > 0) == ("blue.yaml", True)
    assert "10.4.0.0/29" in message
    assert_undisturbed(closing)
    assert closing.give("c3") == ("10.5.0.3",)
    closing.write("blue.yaml", network("blue", "10.4.0.0/29", "10.5.0.0/29"))
    until(lambda: not closing.problems(), "the problem stays")
    assert closing.give("c4") == ("10.4.0.3",)


@pytest.mark.slow
def test_the_last_subnet_of_a_family_closes_the_network_and_opens_it_again(node_with):
    """A pod gets both families or none, so the message says what is closed, not that addresses have run out."""
    node = node_with({"blue.yaml": network("blue", "10.4.0.0/29", "fd00:4::/64")})
    node.start()
    told = node.give("pod-1")
    node.write("blue.yaml", network("blue", "10.4.0.0/29", ("fd00:4::/64", {"closed": True})))
    until(lambda: node.network().phase == "closed", "the closing is not seen")
    refused = node.refuse("c1")
    assert (refused.code, "its IPv6 subnets all are" in refused.message) == (11, True)
    assert node.call("STATUS").ok
    assert node.give("pod-1") == told
    node.write("blue.yaml", network("blue", "10.4.0.0/29", "fd00:4::/64"))
    until(lambda: node.network().phase == "serving", "the opening is not seen")
    assert len(node.give("c1")) == 2


def test_a_restart_says_nothing_of_doubt(node_with):
    node = node_with({"blue.yaml": network("blue", "10.4.0.0/29")})
    node.start()
    node.give("pod-1")
    for _ in range(2):
        node.kill()
        node.start()
        until(lambda: not node.status().source.doubted, "the folder is doubted")
    assert not node.said("doubted")
    assert not node.said("in step again")


def test_a_closed_subnet_goes_when_its_last_pod_has(closing):
    """By itself: the removal stands in the file all the while."""
    closing.write("blue.yaml", network("blue", "10.5.0.0/29"))
    until(closing.problems, "the removal is not refused")
    closing.free("pod-1")
    until(lambda: not closing.problems(), "the subnet is empty and still can't go")
    until(lambda: closing.network().blocks == ("10.5.0.0/29",), "the block stays")
    refused = closing.refuse("c4", config={"runtimeConfig": {"ips": ["10.4.0.4"]}})
    assert "does not belong to network blue" in refused.message


def test_what_can_not_be_changed_is_refused_and_the_last_good_state_kept(blue):
    blue.write("blue.yaml", network("blue", "10.4.0.0/28", layer="L2"))
    (file, line, message), *_ = until(blue.problems, "the change is not refused")
    assert (file, line > 0, "type" in message) == ("blue.yaml", True, True), message
    assert_undisturbed(blue)
    assert blue.give("c1") == ("10.4.0.4",)
    blue.write("blue.yaml", network())
    until(lambda: not blue.problems(), "the problem stays")


# -- broken

BROKEN = {
    "no YAML": ("apiVersion: allotment.dev/v1alpha1\nkind: Network\nmetadata: {name: [\n", 4, ""),
    "an unknown field": (
        "apiVersion: allotment.dev/v1alpha1\nkind: Network\nmetadata: {name: blue}\nspec:\n  type: L3\n  subnet: []\n",
        6,
        "subnet",
    ),
    "host bits": (network("blue", "10.4.0.8/28"), 13, "10.4.0.0/28"),
    "a reversed range": (network("blue", ("10.4.0.0/28", {"exclude": ["10.4.0.9-10.4.0.5"]})), 16, "10.4.0.5-10.4.0.9"),
    "two families": (network("blue", ("10.4.0.0/28", {"exclude": ["fd00::/64"]})), 16, "fd00::/64"),
    "a gateway outside": (network("blue", ("10.4.0.0/28", {"gateway": "10.9.0.1"}), layer="L2"), 14, "10.9.0.1"),
    "a second Network of that name": (network("blue") + "\n---\n" + network("blue", "10.9.0.0/24"), 19, "blue"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_reported_by_name_and_line_and_the_last_good_state_kept(blue, what):
    text, line, said = BROKEN[what]
    blue.write("blue.yaml", text)
    problems = until(blue.problems, "the broken file is not reported")
    assert all(file == "blue.yaml" for file, _, _ in problems)
    assert any(abs(found - line) <= 1 and said in message for _, found, message in problems), problems
    status = blue.cli("status", code=1)
    file, found, message = problems[0]
    assert f"{file}:{found}: {message}" in status["problems"]
    until(lambda: blue.said(f"{file}:{found}: "), "the log does not name it")

    assert_undisturbed(blue)
    assert blue.give("c1") == ("10.4.0.4",)
    blue.kill()
    blue.start()
    assert_undisturbed(blue)
    assert blue.give("c2") == ("10.4.0.5",)
    blue.write("blue.yaml", network())
    until(lambda: blue.cli("status")["problems"] == [], "the problem stays although the file is whole again")


def test_while_a_file_can_not_be_read_nobody_is_newly_admitted(blue):
    """What isn't there may be in it: nothing is admitted, and nothing is taken for removed."""
    blue.write("green.yaml", network("green", "10.6.0.0/24"))
    blue.serving("green")
    blue.write("broken.yaml", "kind: [")
    until(blue.problems, "the broken file is not reported")
    blue.write("red.yaml", network("red", "10.5.0.0/24"))
    blue.remove("green.yaml")
    until(lambda: blue.network("red"), "the new network is not seen")
    refused = blue.refuse("c1", of="red")
    assert refused.code == 11
    assert "nobody is newly admitted until all files can be read (broken.yaml:1" in refused.message, refused
    status = blue.call("STATUS", of="red")
    assert (status.code, "not admitted" in status.message) == (50, True)
    assert blue.record("red.n1") is None
    assert blue.give("c1", of="green") == ("10.6.0.2",)
    assert blue.give("c1") == ("10.4.0.4",)

    blue.remove("broken.yaml")
    blue.serving("red")
    assert blue.give("c1", of="red") == ("10.5.0.2",)
    until(lambda: blue.network("green").phase == "draining", "what was removed meanwhile does not drain")


@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "a pipe", "bytes", "nothing at all"])
def test_a_file_that_is_none_is_reported_and_holds_nobody_up(blue, what):
    """A pipe has no end and a link no file: the agent neither hangs nor takes it for an empty one."""
    path = blue.manifests / "odd.yaml"
    match what:
        case "a folder":
            path.mkdir()
        case "a link to nothing":
            path.symlink_to("nowhere.yaml")
        case "a pipe":
            import os

            os.mkfifo(path)
        case "bytes":
            path.write_bytes(b"\xff\xfe\x00kind")
        case _:
            path = blue.manifests / "blue.yaml"
            path.write_bytes(b"")
    [(file, _, message)] = until(blue.problems, "it is not reported")
    assert file == path.name
    assert message
    assert_undisturbed(blue)
    assert blue.give("c1") == ("10.4.0.4",)


def test_an_object_of_another_kind_is_passed_over_with_a_warning(blue):
    blue.write("pod.yaml", "# somebody else's\napiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
    [warning] = until(lambda: blue.status().source.warnings, "no warning")
    assert (warning.file, warning.line) == ("pod.yaml", 2)
    assert blue.problems() == []
    blue.write("red.yaml", network("red", "10.5.0.0/24"))
    blue.serving("red")


# -- drained


def test_a_removed_allocation_file_drains_last_out_and_nothing_re_admits(node_with):
    node = node_with({"blue.yaml": network(), "blue.n1.yaml": allocation("blue", "10.4.0.0/28")})
    node.start()
    node.serving()
    node.told = {pod: node.give(pod) for pod in ("pod-1", "pod-2")}
    node.remove("blue.n1.yaml")
    until(lambda: node.network().phase == "draining", "it does not drain")

    refused = node.refuse("c1")
    assert refused.code == 7
    assert refused.message == (
        "network blue is draining on node n1: Allocation blue.n1 is being deleted; it gives no new address, releases "
        "go on"
    )
    assert node.call("STATUS").ok, "a draining network is no reason to call the node not ready"
    assert_undisturbed(node)
    assert node.give("pod-1") == node.told["pod-1"]
    assert node.network().waits_for == ("test/pod-1", "test/pod-2")
    condition = until(lambda: draining(node), "no condition says what is waited for")
    assert "2 leases left: test/pod-1, test/pod-2" in condition["message"]
    node.free("pod-1")
    assert node.finalizers() == ["allotment.dev/node"]
    node.kill()
    node.start()
    assert node.refuse("c1").code == 7
    node.free("pod-2")
    until(lambda: node.finalizers() is None, "the last lease is gone and the finalizer stays")

    # Nothing re-admits: not an edit, not a restart, only a file.
    node.write("blue.yaml", network(cooldown=1))
    until(lambda: node.network().phase == "not admitted", "the drain does not end")
    assert "the file of Allocation blue.n1 was removed; put one back" in node.refuse("c1").message
    node.kill()
    node.start()
    assert node.refuse("c1").code == 11
    node.write("blue.n1.yaml", allocation("blue", "10.4.0.0/28"))
    node.serving()
    node.give("c1")


def draining(node):
    record = node.record()
    conditions = record["allocation"].get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == "Draining"), None)


@pytest.mark.parametrize("of", ["the Allocation", "the Network"])
def test_a_deletion_timestamp_drains(node_with, of):
    """As an API server shows an object that is being deleted: it is still there, and on its way out."""
    blocks = allocation("blue", "10.4.0.0/28")
    node = node_with({"blue.yaml": network(), "blue.n1.yaml": blocks})
    node.start()
    node.serving()
    node.told = {"pod-1": node.give("pod-1")}
    stamp = {"deletionTimestamp": DELETED}
    if of == "the Network":
        node.write("blue.yaml", network(meta=stamp))
    else:
        node.write("blue.n1.yaml", allocation("blue", "10.4.0.0/28", **stamp))
    until(lambda: node.network().phase == "draining", "it does not drain")
    assert (node.refuse("c1").code, "is being deleted" in node.refuse("c1").message) == (7, True)
    assert node.finalizers() == ["allotment.dev/node"]
    node.free("pod-1")
    until(lambda: node.finalizers() is None, "the last lease is gone and the finalizer stays")
    assert not node.call("ADD", "c1").ok


def test_a_drain_can_not_be_undone_and_what_comes_back_starts_anew(blue):
    """I9: the Network goes, and is back before the last pod is; the one that is back waits for its turn."""
    blue.write("other.yaml", network("other", "10.9.0.0/24"))
    blue.serving("other")
    blue.remove("blue.yaml")
    until(lambda: blue.network().phase == "draining", "it does not drain")
    blue.write("blue.yaml", network())
    until(lambda: "is back, but the one before it still drains" in str(blue.status().source.warnings), "it is not seen")
    assert blue.refuse("c1").code == 7
    assert_undisturbed(blue)
    blue.free("pod-1")
    blue.free("pod-2")
    blue.serving()
    blue.give("c1")


def test_a_network_without_leases_drains_at_once(blue):
    blue.free("pod-1")
    blue.free("pod-2")
    blue.write("other.yaml", network("other", "10.9.0.0/24"))
    blue.serving("other")
    blue.remove("blue.yaml")
    until(lambda: blue.finalizers() is None, "the finalizer stays though nothing holds it")
    until(lambda: blue.network() is None, "the network stays")
    assert blue.refuse("c1").code == 7


def test_on_l2_the_allocation_is_a_marker_that_goes_at_once(node_with):
    """I5: the pods keep their addresses, and their DELs work without the marker."""
    node = node_with({"lan.yaml": network("lan", "10.6.0.0/28", layer="L2"), "blue.yaml": network()})
    node.start()
    node.told = {"pod-1": node.give("pod-1", of="lan")}
    node.remove("lan.yaml")
    until(lambda: node.finalizers("lan.n1") is None, "the marker stays")
    assert_undisturbed(node)
    assert node.refuse("c1", of="lan").code == 7
    node.free("pod-1", of="lan")
    assert node.leases() == []


def test_a_closed_allocation_keeps_what_it_has_and_can_be_opened_again(node_with):
    node = node_with({"blue.yaml": network(), "blue.n1.yaml": allocation("blue", "10.4.0.0/28")})
    node.start()
    node.serving()
    node.told = {"pod-1": node.give("pod-1")}
    node.write("blue.n1.yaml", allocation("blue", "10.4.0.0/28", closed=True))
    until(lambda: node.network().phase == "closed", "the closing is not seen")
    assert (refused := node.refuse("c1")).code == 11
    assert "is closed on node n1: it keeps what it has and gives no new address" in refused.message
    assert_undisturbed(node)
    node.write("blue.n1.yaml", allocation("blue", "10.4.0.0/28"))
    node.serving()
    node.give("c1")


# -- doubted


@pytest.mark.parametrize("away", ["missing", "empty", "a file"])
def test_a_folder_that_is_away_is_doubted_and_serving_goes_on(blue, away):
    """I15: also across a restart, and also for what was there and is said to be gone."""
    text = (blue.manifests / "blue.yaml").read_text()
    blue.remove("blue.yaml")
    if away != "empty":
        blue.manifests.rmdir()
    if away == "a file":
        blue.manifests.write_text("")
    for _ in range(2):
        until(lambda: "what it held is still served" in blue.status().source.doubted, "it is not doubted")
        assert any("the source is doubted" in problem for problem in blue.cli("status", code=1)["problems"])
        assert_undisturbed(blue)
        assert blue.call("STATUS").ok
        blue.give(f"c{len(blue.leases())}")
        assert blue.finalizers() == ["allotment.dev/node"]
        blue.kill()
        blue.start()

    if away == "a file":
        blue.manifests.unlink()
    blue.manifests.mkdir(exist_ok=True)
    blue.write("blue.yaml", text)
    until(lambda: not blue.status().source.doubted, "the folder is back and still doubted")
    assert_undisturbed(blue)
    assert blue.network().phase == "serving"
    blue.write("more.yaml", network("more", "10.7.0.0/24"))
    blue.serving("more")


def test_an_empty_folder_that_is_meant_is_believed(blue):
    blue.remove("blue.yaml")
    until(lambda: "put a file into it that holds a comment alone" in blue.status().source.doubted, "it isn't doubted")
    blue.write("none.yaml", "# no networks here, and that is meant\n")
    until(lambda: blue.network().phase == "draining", "the comment is not enough")
    assert_undisturbed(blue)
    blue.free("pod-1")
    blue.free("pod-2")
    until(lambda: blue.finalizers() is None, "the finalizer stays")


def test_a_record_that_was_damaged_blocks_admission_and_says_what_to_do(blue):
    """What was recorded decides whether files were ever seen; without it nobody is admitted by guess."""
    blue.kill()
    record = blue.state / "allocations" / "blue.n1.yaml"
    record.write_text(record.read_text()[:100])
    blue.start()
    until(lambda: blue.network().phase == "not admitted", "the damaged record is not seen")
    refused = blue.refuse("c1")
    assert refused.code == 11
    assert "what was recorded of it is damaged" in refused.message
    aside = record.with_name(record.name + ".set-aside")
    assert str(aside) in refused.message
    assert_undisturbed(blue)
    blue.free("pod-2")
    del blue.told["pod-2"]
    aside.unlink()
    blue.write("note.yaml", "# looked at again\n")
    blue.serving()
    assert_undisturbed(blue)
    assert json.dumps(blue.record())
