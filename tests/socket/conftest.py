"""The shim's binaries and a place for sockets."""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


class Shim:
    """A binary of the shim, to be run like a runtime runs it."""

    def __init__(self, binary, socket_path):
        self.binary = binary
        self.socket_path = socket_path

    def environment(self, command="ADD", *, timeout_ms=None, **more):
        env = {
            "PATH": "/usr/bin:/bin",
            "ALLOTMENT_SOCKET": str(self.socket_path),
            "CNI_CONTAINERID": "c0ffee",
            "CNI_NETNS": "/run/netns/blue",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
        }
        if command is not None:
            env["CNI_COMMAND"] = command
        if timeout_ms is not None:
            env["ALLOTMENT_TIMEOUT_MS"] = str(timeout_ms)
        return env | {name: str(value) for name, value in more.items()}

    def run(self, command="ADD", stdin=b"{}", **more):
        """Run it to its end: no run may write to standard error, where only a sanitizer would."""
        done = subprocess.run(
            [self.binary],
            input=stdin,
            env=self.environment(command, **more),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == b"", done.stderr.decode()
        return done

    def start(self, command="ADD", *, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **more):
        return subprocess.Popen([self.binary], stdin=stdin, stdout=stdout, env=self.environment(command, **more))


@pytest.fixture(scope="session")
def build_shim():
    """The module shim/build.py."""
    spec = importlib.util.spec_from_file_location("shim_build", ROOT / "shim" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def released(build_shim):
    """The binary that ships, for this machine."""
    return {path.name: path for path in build_shim.build(quiet=True)}[f"allotment-{platform.machine()}"]


@pytest.fixture(scope="session")
def tampered():
    """The shim with ASan and UBSan, and a libc that misbehaves on demand (tampered.c); kept in the user's cache."""
    compiler = shutil.which(os.environ.get("CC", "gcc")) or pytest.fail("a C compiler is needed (gcc, or CC)")
    source = Path(__file__).with_name("tampered.c")
    parts = [source.read_bytes(), (ROOT / "shim" / "main.c").read_bytes(), repr((compiler, SANITIZERS)).encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "allotment"
    binary = home / f"shim-tampered-{digest}"
    if not binary.exists():
        home.mkdir(parents=True, exist_ok=True)
        draft = binary.with_name(f"{binary.name}.{os.getpid()}")
        command = [compiler, "-std=gnu11", "-g", "-O1", *WARNINGS, *SANITIZERS, "-o", str(draft), str(source)]
        subprocess.run(command, check=True)
        draft.rename(binary)
    return binary


@pytest.fixture
def place():
    """A short path: a socket's name has room for 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="al-") as folder:
        yield Path(folder)


@pytest.fixture
def shim(released, place):
    return Shim(released, place / "cni.sock")


@pytest.fixture
def tampered_shim(tampered, place):
    return Shim(tampered, place / "cni.sock")


@pytest.fixture(params=["released", pytest.param("sanitized", marks=pytest.mark.slow)])
def either(request, place):
    """Both binaries, one after the other; the slow one in the slow tier."""
    name = "released" if request.param == "released" else "tampered"
    return Shim(request.getfixturevalue(name), place / "cni.sock")


@pytest.fixture
def resources():
    """How many file descriptors and threads this process has, as a function."""
    return lambda: tuple(sum(1 for _ in Path("/proc/self", what).iterdir()) for what in ("fd", "task"))
