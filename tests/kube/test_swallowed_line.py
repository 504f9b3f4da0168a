"""A line that swallows everything (CASES 25): noticed and mended within 30 s, in a call and in a watch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.root
def test_a_line_without_a_peer_is_given_up_within_thirty_seconds():
    command = f"ip link set lo up && exec {sys.executable} {TESTS / 'kube' / 'swallowed.py'}"
    ended = subprocess.run(
        ["unshare", "--net", "--kill-child", "--fork", "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    took = json.loads(ended.stdout.splitlines()[-1])
    assert took["patch"] < 30
    assert took["watch"] < 30
    assert took["back"] < 15
    assert took["since"] <= 0, "the line was dead before it was noticed"
