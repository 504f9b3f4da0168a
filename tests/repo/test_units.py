"""The systemd units are what systemd takes, and say what the agent is and needs."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from allotment.node.settings import Settings

UNITS = Path(__file__).parents[2] / "systemd"


class Unit(configparser.ConfigParser):
    """A unit file; a key that is given twice keeps its last value."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str
        self.read_string((UNITS / name).read_text())


def systemd(tool: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of systemd's. It has to be there: what it judges is not judged otherwise."""
    assert shutil.which(tool), f"{tool} is missing; `make packages` installs it"
    return subprocess.run([tool, *words], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_accepts_them(tmp_path):
    for path in UNITS.glob("allotment.*"):
        text = path.read_text()
        program = Unit(path.name)["Service"]["ExecStart"].split()[0] if path.suffix == ".service" else "-"
        (tmp_path / path.name).write_text(text.replace(program, "/bin/true"))  # it is not installed here
    units = [path for path in tmp_path.iterdir() if path.suffix in (".service", ".socket")]
    assert len(units) == 2
    ended = systemd("systemd-analyze", "verify", "--man=no", *units)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_systemd_finds_little_that_the_service_may_do_and_need_not():
    """An exposure of at most 4.0, of 10; what systemd-analyze counts and why it stays is said in the unit."""
    ended = systemd(
        "systemd-analyze", "security", "--offline=true", "--threshold=40", "--no-pager", UNITS / "allotment.service"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Overall exposure level for allotment.service" in ended.stdout


@pytest.mark.root
def test_group_and_folders_are_made_as_the_files_say(tmp_path):
    (tmp_path / "etc").mkdir()
    root = f"--root={tmp_path}"
    for tool, name in (("systemd-sysusers", "sysusers"), ("systemd-tmpfiles", "tmpfiles")):
        extra = ["--create"] if name == "tmpfiles" else []
        ended = systemd(tool, root, *extra, UNITS / f"allotment.{name}.conf")
        assert ended.returncode == 0, ended.stderr
    [(group, number)] = [line.split(":")[::2] for line in (tmp_path / "etc/group").read_text().splitlines()]
    assert group == "allotment"
    made = {
        str(path.relative_to(tmp_path)): (oct(path.stat().st_mode & 0o7777), path.stat().st_gid)
        for path in tmp_path.rglob("*")
        if "allotment" in str(path.relative_to(tmp_path))
    }
    assert made == {
        "run/allotment": ("0o700", 0),
        "run/allotment/spool": ("0o700", 0),
        "etc/allotment": ("0o755", 0),
        "etc/allotment/manifests": ("0o2775", int(number)),
    }


def test_the_socket_is_where_the_agent_and_the_shim_look_for_it():
    unit = Unit("allotment.socket")["Socket"]
    settings = Settings(node="n")
    assert unit["ListenStream"] == str(settings.socket)
    assert unit["SocketMode"] == "0600"
    tmpfiles = (UNITS / "allotment.tmpfiles.conf").read_text()
    assert f"d {settings.spool_dir} 0700 root root" in tmpfiles


def test_the_service_is_watched_restarted_and_given_time_to_drain():
    unit = Unit("allotment.service")
    service = unit["Service"]
    settings = Settings(node="n")
    assert service["Type"] == "notify"
    assert service["Restart"] == "always"
    assert int(service["WatchdogSec"].removesuffix("s")) > 0
    assert int(service["TimeoutStopSec"].removesuffix("s")) > settings.drain_seconds
    assert f"/var/lib/{service['StateDirectory']}" == str(settings.state_dir)
    assert f"/run/{service['RuntimeDirectory']}" == str(settings.socket.parent)
    assert service["RuntimeDirectoryPreserve"] == "yes"  # the spool outlives the agent
    assert unit["Unit"]["Requires"] == "allotment.socket"
    assert int(service["LimitNOFILE"]) > 2 * settings.request_limit


def test_the_service_is_hardened():
    service = Unit("allotment.service")["Service"]
    for key in "NoNewPrivileges", "PrivateTmp", "ProtectHome", "ProtectKernelModules", "RestrictSUIDSGID":
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    allowed = {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_DAC_READ_SEARCH"}
    assert set(service["CapabilityBoundingSet"].split()) <= allowed
