"""The load driver: it must measure what it says, and notice what fails. Slow, because it may have to be compiled."""

from __future__ import annotations

from time import sleep

import pytest

from bench.load import Background, LoadError, Plugin, measure, sync_times

pytestmark = pytest.mark.slow


@pytest.fixture
def plugin(tmp_path):
    """Makes a plugin out of a shell script."""

    def make(script, conf="{}", **env):
        binary, text = tmp_path / "plugin", tmp_path / "conf"
        binary.write_text(f"#!/bin/sh\n{script}\n")
        binary.chmod(0o755)
        text.write_text(conf)
        return Plugin("script", binary, text, env)

    return make


def test_every_operation_runs_every_verb_with_its_own_number(plugin, tmp_path):
    answers = tmp_path / "answers"
    script = plugin('echo "$CNI_COMMAND $CNI_CONTAINERID $(cat)"', conf="conf-@N@", CNI_CONTAINERID="pod-@N@")
    done = measure(script, ["ADD", "DEL"], 6, first=10, callers=3, answers=answers)
    assert {verb: len(values) for verb, values in done.latencies.items()} == {"ADD": 6, "DEL": 6}
    lines = sorted(line.strip() for line in answers.read_text().splitlines())
    assert lines == [f"ADD pod-{number} conf-{number}" for number in range(10, 16)]


def test_a_latency_is_that_of_the_process_and_callers_run_beside_each_other(plugin):
    done = measure(plugin("sleep 0.1"), ["NOTHING"], 8, callers=4)
    assert min(done.latencies["NOTHING"]) >= 100_000
    assert done.seconds < 0.8


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo '{\"code\": 11}'; exit 1", 'exit 1, printed: {"code": 11}'),
        ("exit 0", "exit 0, printed: "),  # an ADD that prints nothing has not answered
        ("kill -9 $$", "exit -9"),
    ],
)
def test_what_fails_is_counted_and_shown_and_not_measured(plugin, script, told):
    done = measure(plugin(script), ["ADD"], 3, may_fail=True)
    assert done.failures == 3
    assert not done.latencies["ADD"]
    assert told in done.first_failure
    with pytest.raises(LoadError, match="3 calls failed"):
        measure(plugin(script), ["ADD"], 3)


def test_load_in_the_background_ends_with_its_block(plugin, tmp_path):
    seen = tmp_path / "seen"
    with Background(plugin(f"echo x >> {seen}; echo done"), ["ADD"], first=0, callers=2) as load:
        assert any((seen.exists() and seen.stat().st_size >= 20) or sleep(0.01) for _ in range(2000))
    assert load.result is not None
    assert load.result.failures == 0
    assert load.result.calls == len(seen.read_text().split()) >= 10


def test_syncs_are_counted_and_leave_no_file(tmp_path):
    times = sync_times(tmp_path / "sync", 5)
    assert len(times) == 5
    assert min(times) > 0
    assert not list(tmp_path.iterdir())
