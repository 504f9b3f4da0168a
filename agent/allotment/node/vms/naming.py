"""Which virtual machine a pod runs: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from allotment.kube.objects import Pod

__all__ = ["KUBEVIRT", "KUBEVIRT_NODE", "vm_of"]

KUBEVIRT: Final = "kubevirt.io"
"""KubeVirt's API group."""
KUBEVIRT_NODE: Final = "kubevirt.io/schedulable"
"""The label, of whatever value, of a node that KubeVirt runs virtual machines on."""
_INSTANCE: Final = "VirtualMachineInstance"


def vm_of(pod: Pod) -> str:
    """The VM that the pod runs, by its name in the pod's namespace; empty for any other pod.

    The controlling owner says it, and no label: whoever may make a pod may write any label on it, while a pod whose
    controller isn't there is collected.
    """
    for owner in pod.metadata.owner_references:
        if owner.controller and owner.kind == _INSTANCE and owner.api_version.partition("/")[0] == KUBEVIRT:
            return owner.name
    return ""
