"""Our units under the real systemd: the agent can do all its work in the sandbox that they make, and nothing else."""

import json
import re

import pytest

from agents import network
from nodes import cni_cache_entry, until
from systemd_machine import SystemdMachine

pytestmark = [pytest.mark.root, pytest.mark.slow]

CONF = '{"cniVersion": "1.1.0", "name": "blue", "type": "ptp", "ipam": {"type": "allotment"}}'


@pytest.fixture(scope="module")
def machine():
    with SystemdMachine() as machine:
        machine.write("/etc/allotment/manifests/blue.yaml", network(v4="10.4.0.0/22", block=22, cooldown=0))
        machine.write("/run/conf", CONF)
        yield machine


@pytest.fixture(autouse=True)
def begun(machine):
    """The units as `systemctl enable --now` leaves them."""
    machine.run("systemctl start allotment.socket allotment.service")


def call(verb, container, *, conf="/run/conf", pause=""):
    return (
        f"{pause}CNI_COMMAND={verb} CNI_CONTAINERID={container} CNI_NETNS=/run/netns/{container} CNI_IFNAME=eth0 "
        f"CNI_PATH=/opt/cni/bin /opt/cni/bin/allotment <{conf}"
    )


def address(machine, container):
    """The IPv4 address that an ADD gives, without its length."""
    return json.loads(machine.run(call("ADD", container)))["ips"][0]["address"].split("/")[0]


def leased(machine):
    """Container to addresses, as the agent has it."""
    found = {}
    for one in json.loads(machine.run("allotment leases -o json")):
        found.setdefault(one["container"], set()).add(one["address"])
    return found


def agents_pid(machine):
    return int(machine.shows("allotment.service", "MainPID"))


def test_the_first_call_starts_the_agent(machine):
    machine.run("systemctl stop allotment.service")
    assert machine.shows("allotment.service", "ActiveState") == "inactive"
    assert address(machine, "first")
    assert machine.shows("allotment.service", "ActiveState") == "active"
    machine.run(call("DEL", "first"))
    assert "first" not in leased(machine)


def test_it_has_what_the_unit_gives_it_and_no_more(machine):
    status = machine.run(f"cat /proc/{agents_pid(machine)}/status")
    has = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    # linux/capability.h: DAC_READ_SEARCH 2, NET_ADMIN 12, NET_RAW 13, SYS_ADMIN 21
    assert int(has["CapBnd"], 16) == int(has["CapEff"], 16) == 1 << 2 | 1 << 12 | 1 << 13 | 1 << 21
    assert has["NoNewPrivs"] == "1"
    assert has["Seccomp"] == "2"
    inside = f"nsenter --target={agents_pid(machine)} --mount"
    for place in ("/etc/allotment", "/run/netns", "/var/lib", "/opt", "/usr"):
        assert "Read-only file system" in machine.run(f"{inside} touch {place}/written", code=1)
    for place in ("/var/lib/allotment", "/run/allotment"):
        machine.run(f"{inside} sh -c 'touch {place}/written && rm {place}/written'")


def test_a_changed_manifest_is_seen_also_one_that_its_writer_alone_may_read(machine):
    machine.write("/etc/allotment/manifests/green.yaml", network("green", v4="10.5.0.0/24", v6=""))
    machine.run("chown 1000 /etc/allotment/manifests/green.yaml; chmod 600 /etc/allotment/manifests/green.yaml")
    until(lambda: "green" in machine.run("allotment status", code=None), "the network is not served")
    machine.run("allotment status")
    machine.run("rm /etc/allotment/manifests/green.yaml")
    until(lambda: "green" not in machine.run("allotment status", code=None), "the network is not let go of")


def test_a_lost_ledger_is_made_again_from_namespaces_that_came_after_the_agent(machine, tmp_path):
    """Their mounts reach the agent's view, it enters them, and reads libcni's results."""
    before = agents_pid(machine)
    given = address(machine, "lost")
    machine.run(
        "ip netns add lost && ip -n lost link add eth0 type bridge && ip -n lost link set eth0 up"
        f" && ip -n lost address add {given}/22 dev eth0"
    )
    entry = cni_cache_entry(tmp_path, "lost", [f"{given}/22"], netns="/run/netns/lost")
    machine.write(f"/var/lib/cni/results/{entry.name}", entry.read_text())
    assert "kernel (1 network namespace" in machine.run("allotment doctor", code=None)
    assert agents_pid(machine) == before
    machine.run(
        "systemctl stop allotment.service allotment.socket; mkdir /var/lib/before;"
        " mv /var/lib/allotment/ledger* /var/lib/before/; systemctl start allotment.socket allotment.service"
    )
    assert leased(machine) == {"lost": {given}}
    machine.run("ip netns delete lost; rm -r /var/lib/before /var/lib/cni")
    machine.run(call("DEL", "lost"))
    assert leased(machine) == {}


def test_what_a_gc_may_free_is_bounded_by_when_its_caller_was_started(machine):
    """The agent reads that from /proc: of a process with more rights than it has itself."""
    machine.write("/run/gc", CONF[:-1] + ', "cni.dev/valid-attachments": []}')
    address(machine, "early")
    # A shell reads what the plugin gets only once the pipe is opened; the plugin has been started by then.
    machine.run("rm -f /run/pipe; mkfifo /run/pipe")
    collecting = machine.begin(call("GC", "", conf="/dev/stdin", pause="cat /run/pipe | "))
    until(lambda: machine.run("pgrep -x allotment", code=None).strip(), "the plugin is not started")
    machine.run("sleep 0.1")  # the kernel says when a process was started in ticks of 10 ms
    address(machine, "late")
    machine.run("cat /run/gc >/run/pipe")
    said, _ = collecting.communicate(timeout=60)
    assert collecting.returncode == 0, said
    assert set(leased(machine)) == {"late"}
    machine.run(call("DEL", "late"))


def test_an_agent_that_is_replaced_again_and_again_fails_no_call(machine):
    """I11: calls wait in systemd's socket."""
    load = [
        machine.begin(f"for n in $(seq 25); do {call('ADD', pod)} || exit; {call('DEL', pod)} || exit; done")
        for pod in ("a-$n", "b-$n", "c-$n", "d-$n")
    ]
    pids = set()
    while any(process.poll() is None for process in load):
        machine.run("systemctl restart allotment.service")
        pids.add(agents_pid(machine))
    for process in load:
        said, _ = process.communicate()
        assert process.returncode == 0, said
        assert len(re.findall('"ips"', said)) == 25
    assert len(pids) >= 2
    assert leased(machine) == {}
    assert machine.run("ls /run/allotment/spool") == ""


def test_a_killed_agent_is_back_by_itself_and_its_leases_with_it(machine):
    given = address(machine, "kept")
    before = agents_pid(machine)
    machine.run(f"kill -KILL {before}")
    until(lambda: agents_pid(machine) not in (0, before), "nobody starts it again")
    assert given in leased(machine)["kept"]
    machine.run(call("DEL", "kept"))


def test_an_agent_that_stands_still_is_found_by_the_watchdog(machine):
    machine.write("/etc/systemd/system/allotment.service.d/soon.conf", "[Service]\nWatchdogSec=2s\n")
    machine.run("systemctl daemon-reload && systemctl restart allotment.service")
    before = agents_pid(machine)
    machine.run(f"kill -STOP {before}")
    until(lambda: agents_pid(machine) not in (0, before), "nobody starts it again", limit=60)
    assert address(machine, "again")
    machine.run(call("DEL", "again"))
    machine.run("rm /etc/systemd/system/allotment.service.d/soon.conf; systemctl daemon-reload")


def test_stopped_for_good_it_leaves_no_socket_and_keeps_what_pods_were_promised(machine):
    address(machine, "gone")
    machine.run("systemctl disable --now allotment.socket allotment.service 2>/dev/null")
    assert machine.run("ls /run/allotment").split() == ["spool"]
    machine.run("ALLOTMENT_TIMEOUT_MS=100 " + call("DEL", "gone"))
    assert machine.run("ls /run/allotment/spool").split()
    machine.run("systemctl start allotment.socket allotment.service")
    until(lambda: leased(machine) == {}, "the DEL that was kept is not done")
