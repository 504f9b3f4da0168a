"""What ships: small, static, for both architectures, from a short source, and built again exactly when needed."""

import platform
import struct
import subprocess
from pathlib import Path

import pytest

from allotment import __version__

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "shim" / "main.c"
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of elf(5)
INTERPRETER = 3  # p_type of the segment that a dynamically linked program has


def segments(elf):
    """(e_machine, the p_type of each segment) of a 64-bit little-endian ELF file."""
    assert elf[:6] == b"\x7fELF\x02\x01"
    machine, at, size, count = (
        struct.unpack_from("<H", elf, 18)[0],
        struct.unpack_from("<Q", elf, 32)[0],
        *struct.unpack_from("<HH", elf, 54),
    )
    return machine, [struct.unpack_from("<I", elf, at + n * size)[0] for n in range(count)]


@pytest.mark.parametrize("architecture", MACHINES)
def test_each_binary_is_small_static_and_says_its_version(build_shim, architecture):
    (path,) = [path for path in build_shim.build(quiet=True) if path.name == f"allotment-{architecture}"]
    elf = path.read_bytes()
    assert len(elf) <= 64 * 1024
    machine, kinds = segments(elf)
    assert machine == MACHINES[architecture]
    assert INTERPRETER not in kinds
    assert f"version {__version__}.".encode() in elf
    assert path.stat().st_mode & 0o777 == 0o755


def test_the_source_stays_short():
    """Without comments and empty lines, which the preprocessor takes out."""
    command = ["gcc", "-fpreprocessed", "-dD", "-E", "-P", str(SOURCE)]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 200 < len([line for line in code.splitlines() if line.strip()]) <= 300


def test_the_source_compiles_without_a_warning(tmp_path):
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-fanalyzer"]
    # The analyzer is right that nobody closes what the process's end closes.
    flags += ["-Wno-analyzer-fd-leak"]
    done = subprocess.run(
        ["gcc", *flags, "-o", str(tmp_path / "shim"), str(SOURCE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def elsewhere(build_shim, tmp_path, monkeypatch):
    """The build, with its results in another place, for this machine, by the system's compiler."""
    monkeypatch.setattr(build_shim, "TARGET", tmp_path / "_shim")
    monkeypatch.setattr(build_shim, "STAMPS", tmp_path / "stamps" / "shim.json")
    monkeypatch.setattr(build_shim, "ARCHITECTURES", (platform.machine(),))
    monkeypatch.setenv("ALLOTMENT_SHIM_CC", "gcc")
    return build_shim


def identity(path):
    return path.stat().st_ino, path.stat().st_mtime_ns


def test_what_is_up_to_date_is_left_alone(elsewhere, monkeypatch):
    (path,) = elsewhere.build()
    first, content = identity(path), path.read_bytes()
    assert elsewhere.build() == [path]
    assert identity(path) == first
    monkeypatch.setattr(elsewhere, "FLAGS", (*elsewhere.FLAGS, "-DOTHER"))
    elsewhere.build()
    assert identity(path) != first
    assert path.read_bytes() == content, "the same source gives the same bytes"


def test_a_damaged_or_missing_binary_is_built_again(elsewhere):
    """A truncated binary is repaired, not kept for being there."""
    (path,) = elsewhere.build()
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    elsewhere.build()
    assert path.read_bytes() == whole
    path.unlink()
    elsewhere.build()
    assert path.read_bytes() == whole
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_failure_leaves_the_former_binary(elsewhere, tmp_path, monkeypatch):
    (path,) = elsewhere.build()
    first = identity(path)
    monkeypatch.setattr(elsewhere, "FLAGS", (*elsewhere.FLAGS, "-DLIMIT="))
    with pytest.raises(elsewhere.BuildError, match="failed"):
        elsewhere.build()
    monkeypatch.setenv("ALLOTMENT_SHIM_CC", "no-such-compiler")
    with pytest.raises(elsewhere.BuildError, match="no-such-compiler"):
        elsewhere.build()
    assert identity(path) == first
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_hook_builds_for_a_wheel_and_not_for_a_source_distribution(elsewhere, tmp_path):
    hook = elsewhere.ShimBuildHook(str(ROOT), {}, None, None, str(tmp_path), "sdist")
    hook.initialize("standard", {})
    assert not elsewhere.TARGET.exists()
    hook = elsewhere.ShimBuildHook(str(ROOT), {}, None, None, str(tmp_path), "wheel")
    hook.initialize("editable", {})
    assert (elsewhere.TARGET / f"allotment-{platform.machine()}").exists()
