"""The agent's settings: one table, from which flags, environment, TOML and the documentation come.

A setting is a field of `Settings` whose metadata says how it is written and what it means. Its flag, variable and
key follow from its name: `state_dir` is `--state-dir`, `ALLOTMENT_STATE_DIR` and `state_dir`. A flag goes before
the environment, the environment before the file, the file before the default. Each value is checked where it comes
from, and an error names that place.
"""

# ruff: noqa: RUF009  # the functions called in the class body make dataclass fields

from __future__ import annotations

import dataclasses
import difflib
import os
import socket as sockets
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from allotment.addressing.errors import ConfigError
from allotment.node import setting_kinds as kinds
from allotment.node.setting_kinds import ListenAddress, SettingKind

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["ENV_PREFIX", "SETTINGS", "Setting", "Settings", "add_arguments", "load"]

ENV_PREFIX: Final = "ALLOTMENT_"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """How one setting is written. `default` is as the documentation shows it."""

    name: str
    kind: SettingKind[Any]
    default: str
    help: str

    @property
    def flag(self) -> str:
        """The command line's spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment's spelling."""
        return ENV_PREFIX + self.name.upper()

    @property
    def key(self) -> str:
        """The TOML file's spelling; empty for what a file can't say about itself."""
        return "" if self.name == "config" else self.name


def _setting(kind: SettingKind[T], default: T, text: str) -> T:
    about = {"kind": kind, "help": text, "default": kind.show(default)}
    return dataclasses.field(default=default, metadata=about)


def _setting_of_host(kind: SettingKind[T], default: Callable[[], T], shown: str, text: str) -> T:
    about = {"kind": kind, "help": text, "default": shown}
    return dataclasses.field(default_factory=default, metadata=about)


def _host_name() -> str:
    return sockets.gethostname().lower()  # as the kubelet names a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the agent can be told. Times are in seconds, sizes in the unit of the name."""

    config: Path | None = _setting(kinds.OPTIONAL_FILE, None, "read settings from this TOML file")
    manifests: Path | None = _setting(
        kinds.OPTIONAL_FOLDER, None, "serve the objects in this folder, without a cluster (standalone)"
    )
    kubeconfig: Path | None = _setting(
        kinds.OPTIONAL_FILE,
        None,
        "serve the objects of the API server that this file names; without it and without a folder, of the cluster "
        "that the agent runs in",
    )
    node: str = _setting_of_host(kinds.NODE_NAME, _host_name, "the host's name", "this node's name")
    state_dir: Path = _setting(
        kinds.FOLDER,
        Path("/var/lib/allotment"),
        "keep the ledger, and in standalone mode the objects' status, in this folder",
    )
    socket: Path = _setting(
        kinds.SOCKET_PATH,
        Path("/run/allotment/cni.sock"),
        "the agent's unix socket, where it answers the CNI; the spool is beside it",
    )
    http: ListenAddress | None = _setting(
        kinds.HTTP, ListenAddress("127.0.0.1", 9733), "serve /metrics, /healthz and /readyz here"
    )
    log_format: str = _setting(kinds.LOG_FORMAT, "json", "how log lines look")
    log_level: str = _setting(kinds.LOG_LEVEL, "info", "the least important log line that is written")
    gc: bool = _setting(kinds.SWITCH, default=True, text="whether a runtime's CNI GC frees the leases it doesn't list")
    add_wait: float = _setting(
        kinds.SECONDS, 5.0, "how long an ADD waits for what is about to come, such as admission to its network"
    )
    claim_wait: float = _setting(
        kinds.SECONDS,
        10.0,
        "how long an ADD of an L2 network in a cluster waits for its address at most; with add_wait it has to end "
        "before the shim does (20 s)",
    )
    request_limit: int = _setting(kinds.whole(1, 65536), 4096, "CNI connections served at once; more have to wait")
    drain_seconds: float = _setting(kinds.SECONDS, 10.0, "how long requests in flight may take to end after SIGTERM")
    history_rows: int = _setting(kinds.whole(0, 100_000_000), 100_000, "ended leases that the ledger remembers")
    ballast_mib: int = _setting(
        kinds.whole(0, 4096), 8, "disk space in MiB kept aside, so that releases go on when the disk is full"
    )
    netns_dir: tuple[Path, ...] = _setting(
        kinds.FOLDERS,
        (Path("/run/netns"), Path("/var/run/netns")),
        "look for network namespaces here when the ledger has to be rebuilt",
    )
    cni_cache_dir: Path = _setting(
        kinds.FOLDER,
        Path("/var/lib/cni"),
        "where the runtime's libcni keeps its results; read when the ledger has to be rebuilt",
    )
    runtime_socket: tuple[Path, ...] | None = _setting(
        kinds.RUNTIME_SOCKET,
        None,
        "ask the container runtime at this socket which pods still run; auto finds the socket of containerd or CRI-O "
        "(auto in a cluster, off with --manifests, unless said)",
    )
    boot_id_file: Path = _setting(
        kinds.FILE,
        Path("/proc/sys/kernel/random/boot_id"),
        "where the ID of this boot is read",
    )

    @property
    def spool_dir(self) -> Path:
        """The folder where the shim keeps DELs while the agent is away: beside the socket, below /run."""
        return self.socket.parent / "spool"

    @property
    def standalone(self) -> bool:
        """Whether the objects come from a folder, and not from a cluster."""
        return self.manifests is not None

    @property
    def runtime_sockets(self) -> tuple[Path, ...]:
        """Where to look for the container runtime; where it isn't to be asked, nowhere."""
        if self.runtime_socket is not None:
            return self.runtime_socket
        return () if self.standalone else kinds.RUNTIME_SOCKETS


SETTINGS: Final[tuple[Setting, ...]] = tuple(
    Setting(entry.name, entry.metadata["kind"], entry.metadata["default"], entry.metadata["help"])
    for entry in dataclasses.fields(Settings)
)


def add_arguments(parser: argparse.ArgumentParser, names: Iterable[str] | None = None) -> None:
    """Add the flags of the named settings (all, if None) to `parser`; `load` reads what it parsed."""
    wanted = None if names is None else set(names)
    for setting in SETTINGS:
        if wanted is not None and setting.name not in wanted:
            continue
        shown = f" (default: {setting.default})" if setting.default else ""
        parser.add_argument(
            setting.flag,
            dest=setting.name,
            metavar=setting.kind.metavar,
            action="append" if setting.kind.many else "store",
            default=None,
            help=(setting.help + shown).replace("%", "%%"),
        )


def load(flags: argparse.Namespace | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force: `flags` (as parsed by the flags of `add_arguments`) over `environ` over the file.

    Raises:
        ConfigError: a value is malformed, or the file can't be read or has a key nobody knows.
    """
    given = {} if flags is None else {name: value for name, value in vars(flags).items() if value is not None}
    table = {setting.name: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.name in given:
            values[setting.name] = _from_flag(setting, given[setting.name])
        elif environ.get(setting.variable):
            values[setting.name] = _parsed(setting, environ[setting.variable], setting.variable)
    if (path := values.get("config")) is not None:
        for name, value in _read_file(path, table).items():
            values.setdefault(name, value)
    try:
        return Settings(**values) if "node" in values else _checked_node(Settings(**values))
    except ValueError as error:
        raise ConfigError(f"the host's name: {error}; say --node NAME or set {ENV_PREFIX}NODE") from error


def _checked_node(settings: Settings) -> Settings:
    kinds.NODE_NAME.parse(settings.node)
    return settings


def _from_flag(setting: Setting, value: str | list[str]) -> Any:
    if isinstance(value, str):
        return _parsed(setting, value, setting.flag)
    return tuple(part for text in value for part in _parsed(setting, text, setting.flag))


def _parsed(setting: Setting, text: str, place: str) -> Any:
    try:
        return setting.kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error


def _read_file(path: Path, table: Mapping[str, Setting]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings file {path} can't be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"the settings file {path} is not TOML: {error}") from error
    keys = {setting.key: setting for setting in table.values() if setting.key}
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(keys))}"
            raise ConfigError(f"{path}: nobody knows the key {key!r}{hint}")
        values[keys[key].name] = _from_toml(keys[key], value, f"{path}: {key}")
    return values


def _from_toml(setting: Setting, value: object, place: str) -> Any:
    kind = setting.kind
    if kind.many and isinstance(value, list):
        if not all(isinstance(part, str) for part in value):
            raise ConfigError(f"{place}: a list of strings is needed")
        return tuple(found for part in value for found in _parsed(setting, part, place))
    if isinstance(value, bool):
        if bool not in kind.toml:
            raise ConfigError(f"{place}: {kind.metavar} is needed, not {str(value).lower()}")
        return value
    if isinstance(value, kind.toml):
        return _parsed(setting, str(value), place)
    if not isinstance(value, str):
        raise ConfigError(f"{place}: {kind.metavar} is needed, not a TOML {type(value).__name__}")
    return _parsed(setting, value, place)
