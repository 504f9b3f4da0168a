"""The CNI configuration list that `allotment install-cni` writes, and how it knows its own again.

One main plugin that makes the interface and asks us for addresses, `portmap` where it is installed, and our own entry
that is told GC (docs/decisions/0003). A mark at the top says who wrote it; libcni passes over keys it doesn't know.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any, Final

from allotment.addressing.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAIN_PLUGINS", "conflist", "is_ours"]

_MARK: Final = "allotment.dev/installed-by"
_MARK_VALUE: Final = "allotment install-cni"

# `cniVersion` is for a libcni before 1.2, which doesn't know `cniVersions`; all of them speak 1.0.0 (containerd 1.6).
_OLD_VERSION: Final = "1.0.0"
_NEW_VERSION: Final = "1.1.0"
_PROBE_SECONDS: Final = 10.0

MAIN_PLUGINS: Final[dict[str, dict[str, Any]]] = {
    "ptp": {},
    "bridge": {"bridge": "allotment0", "isGateway": True, "isDefaultGateway": True, "hairpinMode": True},
}
"""The main plugins that we write a configuration for, with what each needs besides its name."""


def conflist(network: str, plugin: str, bin_dir: Path, *, masquerade: bool = False) -> bytes:
    """The list for one network, as bytes that are the same for the same plugins.

    Raises:
        ConfigError: the main plugin isn't in `bin_dir`, or doesn't run.
    """
    ipam: dict[str, Any] = {"type": "allotment", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    if plugin == "bridge":
        del ipam["routes"]  # isDefaultGateway makes them, and refuses those of the configuration
    main = {
        "type": plugin,
        **MAIN_PLUGINS[plugin],
        "ipMasq": masquerade,
        "capabilities": {"ips": True, "io.kubernetes.cri.pod-annotations": True},
        "ipam": ipam,
    }
    entries = [main]
    versions = _versions(bin_dir / plugin)
    if _runs(bin_dir / "portmap"):
        entries.append({"type": "portmap", "capabilities": {"portMappings": True}})
        versions &= _versions(bin_dir / "portmap")
    entries.append({"type": "allotment", "role": "gc"})
    if _OLD_VERSION not in versions:
        raise ConfigError(
            f"the plugins in {bin_dir} don't speak CNI {_OLD_VERSION}; install containernetworking-plugins 1.1 or newer"
        )
    document: dict[str, Any] = {"cniVersion": _OLD_VERSION}
    if _NEW_VERSION in versions:
        document["cniVersions"] = [_OLD_VERSION, _NEW_VERSION]
    document |= {"name": network, _MARK: _MARK_VALUE, "plugins": entries}
    return (json.dumps(document, indent=2) + "\n").encode("ascii")


def is_ours(content: bytes) -> bool:
    """Whether `allotment install-cni` wrote this file, of whatever version and however it was edited since."""
    try:
        document = json.loads(content)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get(_MARK) == _MARK_VALUE


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _versions(plugin: Path) -> set[str]:
    """The CNI versions that a plugin says it speaks."""
    if not _runs(plugin):
        raise ConfigError(
            f"there is no CNI plugin {plugin}; install the CNI project's plugins, name the folder that has them with "
            "--bin-dir (Debian's package containernetworking-plugins: /usr/lib/cni), or name another --plugin"
        )
    try:
        told = subprocess.run(  # noqa: S603  # a plugin that the runtime runs as well
            [plugin],
            input=b'{"cniVersion":"1.0.0"}',
            env={"CNI_COMMAND": "VERSION"},
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=True,
        ).stdout
        return set(json.loads(told)["supportedVersions"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the CNI plugin {plugin} doesn't say which versions it speaks: {error}") from error
