"""What may stand in the README as our figures, and what may not."""

from __future__ import annotations

import pytest

from bench.readme import BEGIN, END, ROOT, UnfitError, filled

SCENARIOS = [
    "size",
    "add",
    "del",
    "throughput",
    "replace",
    "start",
    "memory",
    "growth",
    "pods",
    "drain",
    "idle",
    "foreign",
]
PAGE = f"before\n{BEGIN}\nold\n{END}\nafter\n"


def results(**changes):
    figures = [
        {
            "scenario": name,
            "what": f"the {name}",
            "value": 0.098,
            "bar": 0.125,
            "sense": "at most",
            "unit": "x",
            "met": True,
            "made_of": "",
        }
        for name in SCENARIOS
    ]
    figures.append(
        {
            "scenario": "throughput",
            "what": "ADDs",
            "value": 2345.6,
            "bar": 2000.0,
            "sense": "at least",
            "unit": "/s",
            "met": True,
            "made_of": "",
        }
    )
    machine = {
        "processor": "Some CPU, 2 cores",
        "state folder": "ext4 on /dev/x",
        "kernel": "Linux 6",
        "Python": "3.11",
        "run": "240 s, 15 rounds",
    }
    return {"machine": machine, "figures": figures, "problems": [], **changes}


def test_a_whole_run_on_a_quiet_machine_is_put_between_the_marks():
    page = filled(PAGE, results())
    assert page.startswith(f"before\n{BEGIN}\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    assert "| the add | 0.10x | at most 0.12x |  |" in page
    assert "| ADDs | 2,346/s | at least 2,000/s |  |" in page
    assert "Some CPU, 2 cores, ext4 on /dev/x, Linux 6, 3.11." in page
    assert filled(page, results()) == page
    assert "missed" not in page


def test_a_bar_that_was_missed_is_shown_as_missed():
    figures = results()["figures"]
    figures[0] |= {"met": False, "value": 0.3, "made_of": "all of it is waiting"}
    page = filled(PAGE, results(figures=figures))
    assert "| the size | 0.30x | at most 0.12x | missed |" in page
    assert "- the size: all of it is waiting." in page


def unfit():
    good = results()
    yield "quick", results(machine={**good["machine"], "run": "9 s, 5 rounds, quick"})
    yield "others used", results(machine={**good["machine"], "beware": "others used it"})
    yield "not whole: growth", results(figures=[one for one in good["figures"] if one["scenario"] != "growth"])
    yield "2 calls failed", results(problems=["2 calls failed"])


@pytest.mark.parametrize(("why", "content"), list(unfit()), ids=lambda value: value if isinstance(value, str) else "")
def test_other_runs_are_refused(why, content):
    with pytest.raises(UnfitError, match=why):
        filled(PAGE, content)


def test_a_page_without_marks_is_refused():
    with pytest.raises(UnfitError, match="has no"):
        filled("nothing here", results())


def test_our_readme_has_the_marks():
    assert filled((ROOT / "README.md").read_text(), results())
