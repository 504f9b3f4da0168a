"""C1: the store survives a reboot, the sandboxes don't, and no DEL ever comes: the range runs out.

The other members of the class: the source is away at boot, the DELs come all the same but late, what the spool held
is of another boot, and whoever asks first asks before the old leases are gone.
"""

import signal

import pytest

from agents import network
from nodes import until

PODS = [f"pod-{number}" for number in range(20)]
SMALL = {
    "v4": "10.4.0.0/27",
    "v6": "fd00:4::/122",
    "block": 27,
}  # room for 29 pods: 20 held ones leave no room for 20 new ones


@pytest.fixture
def full(make_node):
    """A node with 20 pods, about to be rebooted."""
    node = make_node({"blue.yaml": network(cooldown=0, **SMALL)}, boot="before")
    node.start()
    node.told = {pod: node.give(pod) for pod in PODS}
    return node


def test_every_lease_of_an_earlier_boot_ends_and_its_address_is_given_again(full):
    """I8: a changed boot ID is complete evidence; nothing leaks."""
    full.reboot()
    full.start()

    assert full.leases() == []
    assert {(entry.container, entry.ended.cause) for entry in full.history()} == {(pod, "boot") for pod in PODS}
    assert len({full.give(f"new-{pod}") for pod in PODS}) == 20


def test_the_first_to_ask_after_a_reboot_is_given_nothing_that_was_not_checked(full):
    """I15: requests wait at the door while the old leases end; whoever is served then shares with nobody."""
    full.reboot()
    waiting = [full.begin("ADD", f"new-{pod}") for pod in PODS]
    full.start()

    got = [full.finish(shim) for shim in waiting]
    assert all(answer.ok for answer in got), got
    held = {str(lease.address): lease for lease in full.leases()}
    assert len(held) == 40
    assert {lease.container for lease in held.values()} == {f"new-{pod}" for pod in PODS}


def test_after_a_reboot_a_cooldown_starts_anew(make_node):
    """I3, I13: how long the machine was off isn't known, so every address of the earlier boot rests once more."""
    node = make_node({"blue.yaml": network(cooldown=1000, v4="10.4.0.0/29", v6="", block=29)}, boot="before")
    node.start()
    told = [node.give(f"pod-{number}") for number in range(5)]
    node.reboot()
    node.start()

    refused = node.refuse("late")
    assert refused.code == 101
    assert "0 of 5 in use, 5 cooling (next in" in refused.message, refused
    assert len(told) == 5


def test_without_its_source_a_node_that_boots_releases_and_serves(full):
    """I12: the manifests' folder is not there yet at boot, such as one on a disk that is mounted late."""
    away = full.manifests.with_name("away")
    full.manifests.rename(away)
    full.reboot()
    full.start()

    assert full.leases() == []
    until(lambda: "can't be read" in full.status().source.doubted, "the missing folder is not doubted")
    assert len({full.give(f"new-{pod}") for pod in PODS}) == 20

    away.rename(full.manifests)
    until(lambda: not full.status().source.doubted, "the folder is back and still doubted")
    assert full.network().phase == "serving"
    assert len(full.leases()) == 40


def test_a_folder_that_is_empty_at_boot_ends_no_network(full):
    """I15: an empty answer from a source that should not be empty is doubted, also across a restart."""
    full.remove("blue.yaml")
    full.reboot()
    full.start()

    until(lambda: "holds no manifests" in full.status().source.doubted, "the empty folder is believed")
    assert full.finalizers() == ["allotment.dev/node"]
    assert len({full.give(f"new-{pod}") for pod in PODS}) == 20


def test_dels_of_the_earlier_boot_that_come_late_end_nothing_new(full):
    """I7: a runtime cleans up after boot, with container IDs of before; it gets success, and the new pods stay."""
    full.reboot()
    full.start()
    new = {f"new-{pod}": full.give(f"new-{pod}") for pod in PODS}

    for pod in PODS:
        full.free(pod)
        full.free(pod, CNI_NETNS="", config=b'{"type": "allotment"}')
    assert {container: addresses for (_, container), addresses in full.held().items()} == {
        container: tuple(sorted(addresses)) for container, addresses in new.items()
    }


def test_a_reboot_that_is_cut_short_is_finished_by_the_next_start(full):
    """Killed at any time between its first breath and being ready, the agent ends the old leases in the end."""
    full.reboot()
    for _ in range(3):
        full.launch()
        full.await_notice("STATUS")
        full.send(signal.SIGKILL)
        full.wait()
    full.start()

    assert full.leases() == []
    ended = [(entry.sequence, entry.ended.cause) for entry in full.history()]
    assert len(ended) == len(set(ended)) == 40


def test_two_reboots_in_a_row(full):
    """What was given after the first reboot ends with the second, and nothing of the first comes back."""
    for boot in ("after", "later"):
        full.reboot(boot)
        full.start()
        assert full.leases() == []
        for pod in PODS:
            full.give(f"{boot}-{pod}")
    assert {lease.container for lease in full.leases()} == {f"later-{pod}" for pod in PODS}


def test_a_restart_without_a_reboot_keeps_every_lease(full):
    """The other side of the same coin: the boot ID is the same, so every pod still runs."""
    full.kill()
    full.start()
    assert {container: addresses for (_, container), addresses in full.held().items()} == {
        pod: tuple(sorted(addresses)) for pod, addresses in full.told.items()
    }
