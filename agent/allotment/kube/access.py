"""Where the API server is, and as whom to talk to it.

The formats (kubeconfig, the files that a pod finds) are kubernetes_asyncio's business; what it finds is put into one
value of ours. The package as a whole would load a thousand models, 36 MiB that nobody here uses: only its submodule
`config` is imported, under stand-ins for its parents, and only where it is needed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from allotment.addressing.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["Access", "Pem", "find_access"]

Pem = Path | bytes
"""Certificates or a key: a file that may be replaced while we run, or what stood in a kubeconfig."""

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LIBRARY: Final = "kubernetes_asyncio"
_PLUGIN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an API server.

    `server` is its URL, without a slash at the end. `ca` is who signed its certificate (None: whom the machine
    trusts), `server_name` the name in it where that isn't the URL's. Who we are: `token_file` (read again when it
    changes), `token`, or `certificate` with `key`. `renew` finds the access anew, for credentials that a file or a
    plugin gives; it is asked after a 401. Secrets don't show in its repr.
    """

    server: str
    verify: bool = True
    ca: Pem | None = None
    server_name: str = ""
    proxy: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    certificate: Pem | None = field(default=None, repr=False)
    key: Pem | None = field(default=None, repr=False)
    renew: Callable[[], Awaitable[Access]] | None = field(default=None, repr=False, compare=False)


async def find_access(
    kubeconfig: Path | None,
    context: str = "",
    *,
    environment: Mapping[str, str] | None = None,
    service_account: Path = _SERVICE_ACCOUNT,
) -> Access:
    """The access that a kubeconfig describes (its current context, if none is named), or else a pod's own.

    `environment` (the process's, if None) and `service_account` are where a pod's own is looked for.

    Raises:
        ConfigError: there is none, or it makes no sense; the message says what to do.
    """
    if kubeconfig is None:
        return _in_cluster(os.environ if environment is None else environment, service_account)
    return await _from_kubeconfig(kubeconfig, context)


def _in_cluster(environment: Mapping[str, str], folder: Path) -> Access:
    token_file, ca_file = folder / "token", folder / "ca.crt"
    module, refused = _library("incluster_config")
    found = _Settings()
    try:
        module.InClusterConfigLoader(
            token_filename=str(token_file), cert_filename=str(ca_file), environ=environment
        ).load_and_set(found)
    except (*refused, OSError, ValueError) as error:
        message = f"not in a pod with a service account ({error}); outside of one, name a kubeconfig with --kubeconfig"
        raise ConfigError(message) from error
    return Access(server=found.host.rstrip("/"), ca=ca_file, token_file=token_file)


async def _from_kubeconfig(path: Path, context: str) -> Access:
    if not path.is_file():  # noqa: ASYNC240  # once, before anything is served
        raise ConfigError(f"there is no kubeconfig {path}; name another one with --kubeconfig")
    module, refused = _library("kube_config")
    found = _Settings()
    # The library writes what stands in a kubeconfig as data to files. They are read and gone before anybody asks.
    with tempfile.TemporaryDirectory(prefix="allotment-") as folder:
        try:
            merged = module.KubeConfigMerger(str(path)).config
            loader = module.KubeConfigLoader(
                config_dict=merged, active_context=context or None, config_base_path=None, temp_file_path=folder
            )
            async with asyncio.timeout(_PLUGIN_SECONDS):
                await loader.load_and_set(found)
            user = _user(merged.value, loader.current_context)
            pems = {name: _pem(getattr(found, name), folder) for name in ("ssl_ca_cert", "cert_file", "key_file")}
        except TimeoutError as error:
            message = f"kubeconfig {path}: its credential plugin gave nothing within {_PLUGIN_SECONDS:.0f} s; try it"
            raise ConfigError(message) from error
        except (*refused, OSError, ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
            what = str(error) or type(error).__name__
            raise ConfigError(f"kubeconfig {path} can't be used: {what}; mend it") from error
        finally:
            vars(module)["_temp_files"].clear()  # it remembers files that are gone now

    scheme, _, token = found.api_key.get("BearerToken", "").partition(" ")
    if scheme not in {"", "Bearer"}:
        raise ConfigError(f"kubeconfig {path} gives a password, which no API server takes any more; use a token")
    token_file = user.get("tokenFile")
    return Access(
        server=found.host,
        verify=found.verify_ssl,
        ca=pems["ssl_ca_cert"],
        server_name=found.tls_server_name or "",
        proxy=found.proxy or "",
        token=token.strip(),
        token_file=path.parent / token_file if token_file else None,
        certificate=pems["cert_file"],
        key=pems["key_file"],
        renew=lambda: _from_kubeconfig(path, context),
    )


class _Settings:
    """Takes the place of the library's Configuration; the names are the library's."""

    def __init__(self) -> None:
        self.host = ""
        self.api_key: dict[str, str] = {}
        self.ssl_ca_cert: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.tls_server_name: str | None = None
        self.proxy: str | None = None
        self.refresh_api_key_hook: object = None


def _pem(file: str | None, folder: str) -> Pem | None:
    if not file:
        return None
    path = Path(file)
    return path.read_bytes() if path.is_relative_to(folder) else path


def _user(merged: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """The user section of the context: the library reads a `tokenFile` once, we need its name."""
    wanted = context["context"].get("user")
    for entry in merged.get("users") or []:
        plain = getattr(entry, "value", entry)
        if plain["name"] == wanted:
            return plain.get("user") or {}
    return {}


@cache
def _library(name: str) -> tuple[Any, Any]:
    """`kubernetes_asyncio.config.<name>`, imported alone, and the errors it raises on purpose.

    Its parents' `__init__` import everything, so empty modules stand in for them. Afterwards all of it is taken out
    of `sys.modules` again: whoever imports the whole package later gets the whole package.
    """
    before = _loaded()
    for loaded in before:
        del sys.modules[loaded]
    try:
        spec = importlib.util.find_spec(_LIBRARY)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(f"the Python package {_LIBRARY} is missing; install allotment with its dependencies")
        folder = Path(spec.submodule_search_locations[0])
        for parent in ("", "client", "config"):
            stand_in = ModuleType(f"{_LIBRARY}.{parent}" if parent else _LIBRARY)
            stand_in.__path__ = [str(folder / parent)]
            sys.modules[stand_in.__name__] = stand_in
        vars(sys.modules[f"{_LIBRARY}.client"]).update(Configuration=SimpleNamespace, ApiClient=SimpleNamespace)
        module = importlib.import_module(f"{_LIBRARY}.config.{name}")
        refused = importlib.import_module(f"{_LIBRARY}.config.config_exception").ConfigException
    finally:
        for left in _loaded():
            del sys.modules[left]
        sys.modules.update(before)
    import yaml  # noqa: PLC0415  # the library has it; who is a pod and reads no kubeconfig needs neither

    return module, (refused, yaml.YAMLError)


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _LIBRARY}
