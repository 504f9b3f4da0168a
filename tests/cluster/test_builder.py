"""Programs from Go modules are built once, whoever asks at the same time, and anew when what goes into them changes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import golang
import keeping
from golang import built
from keeping import BuildError

MODULE = "module example.test/one\n\ngo 1.21\n"
PROGRAM = """
    import sys
    from pathlib import Path
    from golang import built

    def make(go, folder):
        with Path(sys.argv[2]).open("a") as log:
            print("built", file=log)
        go.build(["."], folder / "one", module=Path(sys.argv[1]), variables={"main.said": "hello"})

    print(built("one", sources=Path(sys.argv[1]).iterdir(), make=make))
"""
SOURCE = """package main

var said = "nothing"

func main() { println(said) }
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A folder with a small Go module; our cache is the test's own, but Go, and Go's cache, are those of all."""
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text(MODULE)
    (folder / "main.go").write_text(SOURCE)
    go = golang._go([folder / "go.mod"]).program
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GOCACHE", subprocess.check_output([go, "env", "GOCACHE"], text=True).strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_two_that_ask_at_the_same_time_get_what_was_built_once(module, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(golang.__file__).parent)}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), module, tmp_path / "log"]
    asking = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate(timeout=100)[0].strip() for process in asking}
    assert [process.returncode for process in asking] == [0, 0]
    [folder] = folders
    assert (tmp_path / "log").read_text() == "built\n"
    ended = subprocess.run([Path(folder) / "one"], capture_output=True, text=True, check=True)
    assert ended.stderr == "hello\n"


def test_a_change_of_what_goes_into_it_builds_it_anew(module):
    made = []
    folders = [built("one", sources=module.iterdir(), make=lambda _, folder: made.append(folder)) for _ in range(2)]
    (module / "main.go").write_text("package main\n")
    folders.append(built("one", sources=module.iterdir(), make=lambda _, folder: made.append(folder)))
    folders.append(built("one", sources=module.iterdir(), more="flags", make=lambda _, folder: made.append(folder)))
    assert len(made) == 3
    assert folders[0] == folders[1]
    assert len({*folders}) == 3
    assert all(folder.is_dir() for folder in folders)


def test_a_build_that_fails_says_so_and_leaves_nothing_to_be_taken_for_it(module):
    (module / "main.go").write_text("package main\n\nfunc main() { nobody() }\n")
    with pytest.raises(BuildError, match="go build"):
        built("one", sources=module.iterdir(), make=lambda go, folder: go.build(["."], folder, module=module))
    assert [path.name for path in keeping.cache().iterdir() if path.is_dir()] == []


def test_what_is_big_is_kept_while_another_checkout_may_use_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    another, forgotten = (keeping.latest_kept("big", digest, made.append) for digest in ("another", "forgotten"))
    day_before = another.stat().st_mtime - 25 * 3600
    for folder in (another, forgotten):
        os.utime(folder, (day_before, day_before))
    assert keeping.latest_kept("big", "another", made.append) == another
    ours = keeping.latest_kept("big", "ours", made.append)
    assert len(made) == 3
    assert (ours.exists(), another.exists(), forgotten.exists()) == (True, True, False)
