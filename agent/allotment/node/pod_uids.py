"""Under which UIDs a pod is known: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from allotment.kube.objects import Pod

__all__ = ["CONFIG_HASH", "is_meant", "uids_of"]

CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""The kubelet's annotation of a static pod's mirror: the UID by which the runtime knows the pod."""


def uids_of(pod: Pod) -> frozenset[str]:
    """Its own UID, and of a static pod's mirror also the one by which the runtime knows the pod."""
    return frozenset({pod.metadata.uid, pod.metadata.annotations.get(CONFIG_HASH, "")} - {""})


def is_meant(pod: Pod, uid: str) -> bool:
    """Whether the runtime's UID means this pod, or its namesake."""
    return uid in uids_of(pod)
