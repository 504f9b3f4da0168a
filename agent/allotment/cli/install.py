"""`allotment install-cni`: the CNI plugin (our shim) and a configuration that names it, put in place or taken away.

The plugin goes first. The configuration goes in only once the agent's socket answers, since a runtime takes a node
for ready as soon as it finds one. What is there already and is the same is left alone, so that nothing is rewritten
in a loop; what is somebody else's is never touched.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import sys
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import AllotmentError, ConfigError, TryAgain
from allotment.cli import Exit
from allotment.cli.conflist import MAIN_PLUGINS, conflist, is_ours
from allotment.cli.placing import Folder, opened
from allotment.cni.client import Client, error_of
from allotment.node.settings import add_arguments, load
from allotment.observe.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BIN_DIR",
    "CONF_DIR",
    "PLUGIN_NAME",
    "configure",
    "is_shim",
    "remove_configuration",
    "remove_plugin",
    "run",
    "seconds_to_wait",
    "shim_of_this_machine",
]

PLUGIN_NAME: Final = "allotment"
"""The name that `ipam.type` gives, hence the file's name: the CNI spec says they are the same."""

_SHIM_MARK: Final = b"ALLOTMENT_SOCKET"
"""In every version of the shim: the environment variable that overrides the socket's path."""

_ANSWER_SECONDS: Final = 5.0
BIN_DIR: Final = Path("/opt/cni/bin")
CONF_DIR: Final = Path("/etc/cni/net.d")
"""Where runtimes look, if nobody tells them otherwise."""

_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 2.0
_LONGEST_WAIT: Final = 86400.0

_CONF_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.conflist")
_NETWORK: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `install-cni`."""
    parser.add_argument(
        "--bin-dir",
        type=Path,
        default=BIN_DIR,
        metavar="DIR",
        help=f"where the runtime looks for plugins (default: {BIN_DIR})",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--conf-dir",
        type=Path,
        default=CONF_DIR,
        metavar="DIR",
        help=f"where the runtime looks for configurations (default: {CONF_DIR})",
    )
    where.add_argument("--no-conf", action="store_true", help="install the plugin alone")
    parser.add_argument(
        "--conf-name",
        default="10-allotment.conflist",
        metavar="NAME",
        help="the configuration's file name; runtimes take the first by name (default: 10-allotment.conflist)",
    )
    parser.add_argument(
        "--network", default="default", metavar="NAME", help="the network that pods are attached to (default: default)"
    )
    parser.add_argument(
        "--plugin", choices=MAIN_PLUGINS, default="ptp", help="the plugin that makes the pod's interface (default: ptp)"
    )
    parser.add_argument(
        "--masquerade", action="store_true", help="hide pods behind the node's address when they leave their block"
    )
    add_arguments(parser, ["socket"])
    parser.add_argument(
        "--wait",
        type=seconds_to_wait,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the agent before the configuration goes in (default: 60)",
    )
    parser.add_argument("--remove", action="store_true", help="take away what this command put in place")


def run(arguments: argparse.Namespace) -> Exit:
    """Install or remove, and say what was done.

    Raises:
        ConfigError: a flag is wrong, a file is not ours, or a plugin is missing.
        TryAgain: the disk doesn't take it, the agent doesn't answer, or another install is at work.
    """
    if not _CONF_NAME.fullmatch(arguments.conf_name):
        raise ConfigError(f"--conf-name: {arguments.conf_name!r} is no file name that ends in .conflist")
    if not _NETWORK.fullmatch(arguments.network):
        raise ConfigError(f"--network: {arguments.network!r} is no network name: a DNS label of at most 50 characters")
    if arguments.remove:
        _remove(arguments)
    else:
        _install(arguments)
    return Exit.OK


def _install(arguments: argparse.Namespace) -> None:
    shim = shim_of_this_machine()
    content = b""
    if not arguments.no_conf:  # with a plugin missing, nothing is done by half
        content = conflist(arguments.network, arguments.plugin, arguments.bin_dir, masquerade=arguments.masquerade)
    with opened(arguments.bin_dir) as folder:
        _refuse_foreign(folder, PLUGIN_NAME, ours=_is_shim(folder.read(PLUGIN_NAME), shim))
        _say(folder, PLUGIN_NAME, written=folder.put(PLUGIN_NAME, shim, 0o755))
    if arguments.no_conf:
        return
    with opened(arguments.conf_dir) as folder:
        _refuse_foreign_conf(folder, arguments.conf_name)
    _wait_for_agent(load(arguments).socket, arguments.network, arguments.wait)
    with opened(arguments.conf_dir) as folder:
        _refuse_foreign_conf(folder, arguments.conf_name)
        _say(folder, arguments.conf_name, written=folder.put(arguments.conf_name, content, 0o644))


def _wait_for_agent(socket: Path, network: str, seconds: float) -> None:
    """Return once the agent says that it can serve, which is what a runtime will ask it next."""
    body = json.dumps({"cniVersion": "1.1.0", "name": network, "type": PLUGIN_NAME}).encode()
    clock = SystemClock("")
    end = clock.seconds() + seconds
    pause, hint, told = _PAUSE_SECONDS, "", False
    while True:
        try:
            reply = Client(socket, timeout=_ANSWER_SECONDS).call({"CNI_COMMAND": "STATUS"}, body)
            if not reply.exit_code:
                return
            problem = error_of(reply)
            hint = "; `allotment status` lists the networks here, and --network names one"
        except ConfigError:
            raise
        except AllotmentError as error:
            problem = error
        if (left := end - clock.seconds()) <= 0:
            raise TryAgain(
                f"no configuration was put in place, since the agent doesn't serve network {network}: {problem}{hint}"
            ) from problem
        if not told:
            print(f"waiting up to {seconds:g} s for the agent to serve network {network}: {problem}", file=sys.stderr)
            told = True
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def seconds_to_wait(text: str) -> float:
    """A flag's number of seconds, up to a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST_WAIT:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to {_LONGEST_WAIT:.0f}")
    return seconds


def _remove(arguments: argparse.Namespace) -> None:
    # The configuration first: with it gone, no runtime calls the plugin any more.
    found = not arguments.no_conf and remove_configuration(arguments.conf_dir, arguments.conf_name)
    found |= remove_plugin(arguments.bin_dir)
    if not found:
        print(f"nothing to remove: there is no {arguments.bin_dir / PLUGIN_NAME}, and no configuration of ours")


def remove_configuration(folder: Path, name: str) -> bool:
    """Remove a configuration if this command wrote it; says whether there is one, ours or not.

    Raises:
        ConfigError, TryAgain: as `run`.
    """
    return _remove_file(folder, name, is_ours)


def remove_plugin(folder: Path) -> bool:
    """Remove the plugin if it is a shim of ours, of whatever version; says whether there is one, ours or not.

    Raises:
        ConfigError, TryAgain: as `run`.
    """
    return _remove_file(folder, PLUGIN_NAME, is_shim)


def is_shim(content: bytes) -> bool:
    """Whether a file is a shim of ours, of whatever version."""
    return _SHIM_MARK in content


def _remove_file(path: Path, name: str, ours: Callable[[bytes], bool]) -> bool:
    if not path.is_dir():
        return False
    with opened(path, create=False) as folder:
        content = folder.read(name)
        if content is None:
            return False
        if ours(content):
            folder.remove(name)
            print(f"removed: {path / name}")
        else:
            print(f"left alone: {path / name} (not installed by this command)")
    return True


def shim_of_this_machine() -> bytes:
    """The plugin for this machine's processor, as it was built into the package.

    Raises:
        ConfigError: the package has none for it.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    file = resources.files("allotment") / "_shim" / f"allotment-{machine}"
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"this installation has no CNI plugin for {machine}; install the wheel, or run `make venv`"
        ) from error


def _is_shim(found: bytes | None, shim: bytes) -> bool:
    """Whether a file under the plugin's name is ours to replace: none, a shim of any version, or one cut short."""
    return found is None or is_shim(found) or shim.startswith(found)


def _refuse_foreign_conf(folder: Folder, name: str) -> None:
    found = folder.read(name)
    # An empty file is nobody's: it is what a full disk leaves of a file that was written in place.
    _refuse_foreign(folder, name, ours=not found or is_ours(found))


def _refuse_foreign(folder: Folder, name: str, *, ours: bool) -> None:
    if not ours:
        raise ConfigError(
            f"{folder.path / name} was not installed by this command and is left alone; move it away first"
        )


def _say(folder: Folder, name: str, *, written: bool) -> None:
    print(f"{'installed' if written else 'up to date'}: {folder.path / name}")
