"""Runs the fuzz targets for a bounded time; a longer run is `python tests/fuzz/fuzz_frames.py -max_total_time=3600`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = sorted(path.name for path in Path(__file__).parent.glob("fuzz_*.py"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="the extra `fuzz` is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    program = Path(__file__).with_name(target)
    limits = ["-max_total_time=20", "-runs=400000", "-max_len=512", "-rss_limit_mb=1024"]
    done = subprocess.run(
        [sys.executable, str(program), *limits, f"-artifact_prefix={tmp_path}/", str(corpus)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(list(corpus.iterdir())) > 20, "the fuzzer sees no coverage: is the parser instrumented?"
