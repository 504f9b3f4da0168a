"""How the value of a setting is written: its check, its place-holder in the help, and how a default is shown.

A kind reads text, since flags and the environment are text; a value from TOML is turned into the same text first,
if it is of a type that the kind lists. `parse` raises ValueError with the reason alone; who called adds the place.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "FILE",
    "FOLDER",
    "FOLDERS",
    "HTTP",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "NODE_NAME",
    "OPTIONAL_FILE",
    "OPTIONAL_FOLDER",
    "RUNTIME_SOCKET",
    "RUNTIME_SOCKETS",
    "SECONDS",
    "SOCKET_PATH",
    "SWITCH",
    "ListenAddress",
    "SettingKind",
    "whole",
]

T = TypeVar("T")

_SUN_PATH: Final = 107  # bytes that sockaddr_un holds, less the closing NUL (unix(7))
_MAX_NODE_NAME: Final = 253

RUNTIME_SOCKETS: Final = (Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock"))
"""Where containerd and CRI-O listen unless they are told otherwise."""
_NODE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen for HTTP; `port` 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[T]):
    """One way of writing a value. `toml` lists the TOML types (besides strings) that mean the same as their text."""

    metavar: str
    parse: Callable[[str], T]
    show: Callable[[T], str]
    toml: tuple[type, ...] = ()
    many: bool = False


def _path(text: str) -> Path:
    if "\0" in text:
        raise ValueError("a path holds no NUL character")
    if not text:
        raise ValueError("a path is needed")
    return Path(text).absolute()


def _socket_path(text: str) -> Path:
    path = _path(text)
    if (length := len(str(path).encode())) > _SUN_PATH:
        raise ValueError(f"{path} is {length} bytes long; a socket's path has at most {_SUN_PATH}")
    return path


def _runtime_socket(text: str) -> tuple[Path, ...]:
    if text in ("auto", "off"):
        return RUNTIME_SOCKETS if text == "auto" else ()
    return (_socket_path(text),)


def _show_runtime_socket(places: tuple[Path, ...]) -> str:
    return {RUNTIME_SOCKETS: "auto", (): "off"}.get(places) or str(places[0])


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(":"))


def _node_name(text: str) -> str:
    if len(text) > _MAX_NODE_NAME or not _NODE_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is no node name: lower-case letters, digits, '-' and '.', at most {_MAX_NODE_NAME}, "
            "each part beginning and ending with a letter or digit"
        )
    return text


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= _MAX_SECONDS:
        raise ValueError(f"{text!r} is no time: a number of seconds from 0 to {_MAX_SECONDS:.0f} is needed")
    return number


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(f"{text!r} is neither on nor off")
    return text == "on"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return parse


def _listen_address(text: str) -> ListenAddress | None:
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{text!r} is neither off nor ADDRESS:PORT, as in 127.0.0.1:9733 or [::1]:9733") from None
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{text!r} has no port from 0 to 65535 at its end")
    return ListenAddress(str(address), int(port))


def whole(least: int, most: int) -> SettingKind[int]:
    """A whole number from `least` to `most`."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return SettingKind("NUMBER", parse, str, (int,))


def _words(*words: str) -> SettingKind[str]:
    return SettingKind("|".join(words), _one_of(*words), str)


def _optional(kind: SettingKind[T]) -> SettingKind[T | None]:
    """The same, where None (shown as nothing) stands for a value that wasn't given."""
    return SettingKind(kind.metavar, kind.parse, lambda value: "" if value is None else kind.show(value), kind.toml)


FOLDER: Final[SettingKind[Path]] = SettingKind("DIR", _path, str)
FILE: Final[SettingKind[Path]] = SettingKind("FILE", _path, str)
OPTIONAL_FOLDER: Final = _optional(FOLDER)
OPTIONAL_FILE: Final = _optional(FILE)
FOLDERS: Final[SettingKind[tuple[Path, ...]]] = SettingKind(
    "DIR", _paths, lambda paths: ":".join(map(str, paths)), many=True
)
SOCKET_PATH: Final[SettingKind[Path]] = SettingKind("PATH", _socket_path, str)
RUNTIME_SOCKET: Final = _optional(SettingKind("auto|off|PATH", _runtime_socket, _show_runtime_socket))
NODE_NAME: Final[SettingKind[str]] = SettingKind("NAME", _node_name, str)
SECONDS: Final[SettingKind[float]] = SettingKind("SECONDS", _seconds, "{:g}".format, (int, float))
SWITCH: Final[SettingKind[bool]] = SettingKind("on|off", _switch, lambda on: "on" if on else "off", (bool,))
HTTP: Final[SettingKind[ListenAddress | None]] = SettingKind(
    "ADDRESS:PORT|off", _listen_address, lambda address: "off" if address is None else str(address)
)
LOG_FORMAT: Final = _words("json", "console")
LOG_LEVEL: Final = _words("debug", "info", "warning", "error")
