"""Pods of virtual machines and their Claims, against a fake API server and the controller's double (ADR 0013)."""

import pytest

from allotment.addressing.address import parse_address
from allotment.addressing.book import Claimed
from allotment.addressing.errors import TryAgain
from allotment.addressing.lease import Cause, Owner, handle
from allotment.api.meta import ObjectMeta, OwnerReference
from allotment.kube.objects import Pod
from allotment.kube.resources import ADDRESSES, CLAIMS, PODS
from allotment.node.vms.naming import vm_of
from kube.following import until
from unit.node.test_claims_desk import stage

INSTANCE = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "db", "controller": True}


def launch(made, name):
    """Have the virt-launcher pod of VM shop/db; its UID."""
    meta = {"name": name, "namespace": "shop", "ownerReferences": [{**INSTANCE, "uid": "vmi"}]}
    return made.server.put(PODS, {"metadata": meta}).metadata.uid


def addresses(made):
    return {item["spec"]["address"]: item["spec"] for item in made.server.objects.list(ADDRESSES)}


@pytest.mark.parametrize(
    ("changes", "vm"),
    [
        ({}, "db"),
        ({"api_version": "kubevirt.io/v1alpha3"}, "db"),
        ({"controller": False}, ""),
        ({"kind": "ReplicaSet"}, ""),
        ({"api_version": "apps/v1"}, ""),
        ({"api_version": "not-kubevirt.io/v1"}, ""),
        ({"api_version": "kubevirt.io.example.org/v1"}, ""),
    ],
)
def test_only_a_controlling_owner_of_kubevirt_makes_a_pod_a_vms(changes, vm):
    given = {"api_version": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "controller": True} | changes
    owner = OwnerReference(name="db", uid="vmi", **given)
    labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "other"}
    assert vm_of(Pod(ObjectMeta("launcher", labels=labels, owner_references=(owner,)))) == vm
    assert vm_of(Pod(ObjectMeta("launcher", labels=labels))) == ""


async def test_a_vms_pod_is_known_by_its_owner_and_so_is_its_lease():
    async with stage() as made:
        assert await made.add(pod_uid=launch(made, "c1")) == ("192.0.2.2", "fd00:2::2")
        assert {lease.owner.vm for lease in made.book.leases()} == {"db"}
        assert {handle(lease.owner) for lease in made.book.leases()} == {"blue.shop-db"}
        assert {claim["spec"]["vm"] for claim in made.server.objects.list(CLAIMS)} == {"db"}
        assert {spec["handle"] for spec in addresses(made).values()} == {"blue.shop-db"}
        assert addresses(made)["192.0.2.2"]["vm"] == {"namespace": "shop", "name": "db", "interface": "eth0"}
        claim = f"shop/{made.server.objects.list(CLAIMS)[0]['metadata']['name']}"
        await until(lambda: made.desk.role(claim) == "Active", "the role is not seen")


async def test_a_namesake_with_another_uid_is_no_vms_pod():
    async with stage() as made:
        launch(made, "c1")
        await made.add(pod_uid="of-its-predecessor")
        assert {lease.owner.vm for lease in made.book.leases()} == {""}


async def test_two_pods_of_a_vm_never_hold_its_address_on_one_node():
    """I1: the second waits for the first one's end, and claims nothing meanwhile."""
    async with stage() as made:
        one, two = launch(made, "c1"), launch(made, "c2")
        first = await made.add(pod_uid=one)
        with pytest.raises(TryAgain, match=r"shop/db still has 192\.0\.2\.2 .* by its pod shop/c1 .* has to end first"):
            await made.add("c2", pod_uid=two)
        assert made.claims() == ["c1", "c1"]
        await made.delete()
        assert len(await made.add("c2", pod_uid=two)) == len(first)


async def test_two_interfaces_of_one_pod_have_an_address_each():
    async with stage() as made:
        uid = launch(made, "c1")
        first = await made.add(pod_uid=uid)
        second = await made.add(pod_uid=uid, interface="net1")
        assert not {*first} & {*second}


async def test_a_claim_that_named_no_vm_is_let_go_for_one_that_does():
    """An earlier try didn't find the pod in the API: what it claimed is not the VM's."""
    async with stage() as made:
        made.controller.set(idle=True)
        with pytest.raises(TryAgain):
            async with made.limited(0.3):
                await made.add(pod_uid="unknown")
        made.controller.set(idle=False)
        await made.add(pod_uid=launch(made, "c1"))
        assert [claim["spec"].get("vm") for claim in made.server.objects.list(CLAIMS)] == ["db", "db"]


async def test_a_lost_ledger_finds_the_vm_in_the_claims():
    async with stage() as made:
        given = await made.add(pod_uid=launch(made, "c1"))
        for claim in made.server.objects.list(CLAIMS):
            claim["metadata"]["annotations"]["allotment.dev/ledger"] = "another"
            made.server.put(CLAIMS, claim)
        made.waits = "a rebuild is running"
        await made.attachments.remove(list(made.book.leases()), Cause.OPERATOR, "as if they were lost")
        made.waits = ""
        made.desk.poke()
        await until(lambda: len(list(made.book.leases())) == 2, "the leases are not made again")
        assert {(str(lease.address), lease.owner.vm) for lease in made.book.leases()} == {(a, "db") for a in given}


async def test_a_running_pod_whose_claim_was_forced_away_claims_for_its_vm_again():
    async with stage() as made:
        owner = Owner("blue", "c1", "eth0", "shop", "c1", "uid-c1", vm="db")
        await made.attachments.restore([Claimed(owner, parse_address("192.0.2.9"))])
        made.desk.poke()
        await until(lambda: made.claims() == ["c1"], "no Claim is made for it")
        [claim] = made.server.objects.list(CLAIMS)
        assert (claim["spec"]["vm"], claim["spec"]["value"]) == ("db", "192.0.2.9")
