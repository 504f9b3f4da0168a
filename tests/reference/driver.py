"""A container runtime in a few lines: libcni through `cnidriver`, with its own cache of results."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reference.build import cnidriver

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CniError", "Runtime"]


class CniError(Exception):
    """libcni's answer was an error; `code` is the plugin's, 0 when no plugin said it."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"code {error['code']}: {error['msg']} ({error.get('details', '')})")
        self.code: int = error["code"]
        self.message: str = error["msg"]
        self.details: str = error.get("details", "")


@dataclass
class Runtime:
    """One configuration list and where its plugins and results lie.

    `conflist` is written to `folder` anew for each operation, so a test may change it between two. `within` is put
    before the command, such as `nsenter --net=…`, to run the plugins as on another node.
    """

    folder: Path
    plugins: list[Path]
    conflist: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    timeout: float = 60.0

    def add(
        self,
        container: str,
        netns: str,
        *,
        interface: str = "eth0",
        arguments: str = "",
        capabilities: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """ADD; the result of the whole list."""
        result = self._run("add", container, netns, interface, arguments, capabilities)
        assert isinstance(result, dict)
        return result

    def check(self, container: str, netns: str, *, interface: str = "eth0", arguments: str = "") -> None:
        """CHECK, with the result that ADD left in the cache."""
        self._run("check", container, netns, interface, arguments)

    def delete(self, container: str, netns: str = "", *, interface: str = "eth0", arguments: str = "") -> None:
        """DEL; without a path of a network namespace it is as after a crash of the sandbox."""
        self._run("del", container, netns, interface, arguments)

    def status(self) -> None:
        """STATUS; libcni asks nobody where the list is older than 1.1.0."""
        self._run("status")

    def gc(self, valid: list[tuple[str, str]] | None) -> None:
        """GC with the (container, interface) pairs that are still valid; None is Go's nil list.

        libcni sends a DEL for each attachment in its cache that isn't listed, then GC to each plugin of the list.
        """
        entries = None if valid is None else [{"containerID": one, "ifname": name} for one, name in valid]
        self._run("gc", valid=json.dumps(entries))

    def forget(self) -> None:
        """Lose libcni's cache, as a runtime does whose state was wiped."""
        for path in sorted(self._cache.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    @property
    def _cache(self) -> Path:
        return self.folder / "cache"

    def _run(
        self,
        operation: str,
        container: str = "",
        netns: str = "",
        interface: str = "eth0",
        arguments: str = "",
        capabilities: dict[str, Any] | None = None,
        valid: str = "",
    ) -> Any:
        conf = self.folder / "list.conflist"
        conf.write_text(json.dumps(self.conflist))
        command = [
            *self.within,
            str(cnidriver()),
            *("-plugins", ":".join(str(path) for path in self.plugins)),
            *("-conf", str(conf)),
            *("-cache", str(self._cache)),
            *("-container", container, "-netns", netns, "-ifname", interface, "-args", arguments),
            *("-capabilities", json.dumps(capabilities) if capabilities else ""),
            *("-valid", valid),
            *("-timeout", f"{self.timeout}s"),
            operation,
        ]
        environment = {**os.environ, **self.environment}
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=self.timeout + 10, check=False
        )
        assert run.returncode in (0, 1), f"cnidriver failed by itself: {run.stderr}"
        answer = json.loads(run.stdout)
        if "error" in answer:
            raise CniError(answer["error"])
        return answer["result"]
