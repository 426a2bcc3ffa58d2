"""The benchmark: reports of invented results, some sections with tiny sizes, and systems that can't be measured."""

from __future__ import annotations

import inspect
import json
import pkgutil
import time
from importlib import import_module

import pytest

import bench
from bench.__main__ import SECTIONS, measure
from bench.lib import machine, undisturbed
from bench.lib.processes import Outcome, System, run_rounds
from bench.lib.sections import Comparison, Metric, Section, as_json, comparison_table, system_table
from bench.lib.tables import markdown_table
from bench.lib.workload import Shape, make_data
from bench.micro.test_kernels import VECTOR_KERNELS
from bench.single import interleaved
from bench.single.plan import Plan
from dslide import _core

SPEED, MEMORY = Metric("speed", "samples/s"), Metric("memory", "GB", ".1f")


def invented(name, **options):
    return System(name, "none:none", {}, **options)


@pytest.fixture
def three():
    """Ours, a peer that is slower in slow rounds too, and one that is not installed."""
    ours, peer, absent = invented("ours"), invented("peer"), invented("absent")
    outcomes = {
        ours: Outcome([{"speed": s, "memory": 1.5} for s in (1000, 3000, 1400)]),
        peer: Outcome([{"speed": s, "memory": m} for s, m in ((500, 2.0), (1000, 2.2), (700, 2.1))]),
        absent: Outcome(problem="not installed"),
    }
    comparisons = [
        Comparison(ours, peer, SPEED),
        Comparison(ours, peer, MEMORY, "difference"),
        Comparison(ours, absent, SPEED),
    ]
    return Section("Speed", "Invented.", [ours, peer, absent], [SPEED, MEMORY], comparisons), outcomes


@pytest.mark.parametrize("kernel", VECTOR_KERNELS, ids=lambda kernel: kernel[0].__name__)
def test_micro_benchmarks_call_kernels_as_they_are(kernel):
    make, length, _ = kernel
    for level in _core.isa_levels():
        for times in (0, 1, 3):
            make(_core.Kernels(level), times * length)()


@pytest.mark.parametrize("name", [m.name for m in pkgutil.walk_packages(bench.__path__, "bench.")])
def test_every_module_can_be_imported(name):
    if name.endswith("ddp_rank"):
        pytest.importorskip("torch")
    if not name.endswith("__main__"):
        import_module(name)


def test_table_has_medians_with_lowest_and_highest(three):
    assert system_table(*three).splitlines()[2:] == [
        "| ours | 1,400 (1,000 to 3,000) | 1.5 |",
        "| peer | 700 (500 to 1,000) | 2.1 (2.0 to 2.2) |",
        "| absent | not installed |  |",
    ]


def test_comparisons_are_taken_within_a_round(three):
    """The rounds' ratios are 2, 3 and 2; the ratio of lowest to highest speeds would be 1 or 6."""
    assert comparison_table(*three).splitlines()[2:] == [
        "| samples/s: ours / peer | 2.00 (2.00 to 3.00) |",
        "| GB: ours - peer | -0.6 (-0.7 to -0.5) |",
        "| samples/s: ours / absent | - |",
    ]


def test_json_has_every_round_and_summaries(three):
    section, outcomes = three
    found = as_json([section], outcomes, {"plan": "invented"})["sections"][0]
    ours, peer, absent = found["systems"]
    assert [run["speed"] for run in ours["rounds"]] == [1000, 3000, 1400]
    assert peer["summary"]["speed"] == {"median": 700, "lowest": 500, "highest": 1000}
    assert absent["problem"] == "not installed"
    assert found["comparisons"][0]["rounds"] == [2, 3, 2]
    assert found["comparisons"][0]["summary"] == {"median": 2, "lowest": 2, "highest": 3}


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_system_runs_once_a_round_with_its_seed():
    system = System("dictionary", "builtins:dict", {"speed": 7})
    outcomes = run_rounds([system, system], seeds=[0, 7])
    assert outcomes[system].rounds == [{"speed": 7, "seed": 0}, {"speed": 7, "seed": 7}]


def test_systems_that_fail_are_reported_with_their_last_line_and_the_others_run():
    fails = System("fails", "builtins:no_such_function", {})
    hangs = System("hangs", "tests.bench.test_bench:hang", {}, limit=0.2)
    works = System("works", "builtins:dict", {"speed": 7})
    logged = []
    outcomes = run_rounds([fails, hangs, works], seeds=[0, 1], log=logged.append)
    assert outcomes[fails].failed
    assert "no_such_function" in outcomes[fails].problem
    assert outcomes[hangs].problem == "failed: no result after 0.2 s"
    assert len(outcomes[works].rounds) == 2
    assert "round 1 of 2: waiting for hangs (tests.bench.test_bench, at most 0.2 s)" in logged
    assert not any("round 2" in line and "works" not in line for line in logged)  # once is enough
    table = system_table(Section("", "", [fails, works], [SPEED]), outcomes)
    assert "| fails | failed: AttributeError" in table


def hang(seed):
    time.sleep(60)


def test_what_cannot_run_here_is_no_failure():
    outcomes = run_rounds([invented("peer", needs="no_such_package"), invented("huge", least_bytes=10**18)], seeds=[0])
    peer, huge = outcomes.values()
    assert peer.problem == "not installed"
    assert huge.problem.startswith("skipped: needs 1,000,000 TB of memory, and ")
    assert not peer.failed
    assert not huge.failed


def test_steps_next_to_slow_measurements_are_disturbed(monkeypatch):
    speeds = iter([100.0, 98.0, 99.0, 60.0, 97.0, 95.0])
    monkeypatch.setattr(undisturbed, "product_speed_now", lambda threads: next(speeds))
    monitor = undisturbed.StepMonitor(threads=2, peak=110)
    monitor.begin()
    for _ in range(5):
        monitor.step_done()
    assert monitor.undisturbed("abcde") == ["a", "b", "e"]  # the slow one is after c and before d


def test_steps_are_disturbed_if_threads_share_a_core_all_the_time(monkeypatch):
    speeds = iter([100.0, 99.0, 180.0, 190.0])
    monkeypatch.setattr(undisturbed, "product_speed_now", lambda threads: next(speeds))
    monitor = undisturbed.StepMonitor(threads=2, peak=200)
    monitor.begin()
    monitor.step_done()
    assert monitor.share == 0
    monitor.begin()
    monitor.step_done()
    assert monitor.undisturbed("ab") == ["b"]
    assert monitor.share == 0.5


def test_if_all_steps_were_disturbed_all_count(monkeypatch):
    speeds = iter([100.0, 50.0, 60.0])
    monkeypatch.setattr(undisturbed, "product_speed_now", lambda threads: next(speeds))
    monitor = undisturbed.StepMonitor(threads=1, peak=110)
    monitor.begin()
    for _ in range(2):
        monitor.step_done()
    assert monitor.undisturbed([1, 2]) == [1, 2]


# ---- sections --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    shape = Shape(rows=1500, features=200, labels=5000, test_rows=20)
    sizes = {"speed": shape, "growth": (500, 50_000), "accuracy": shape, "epochs": 1}
    return Plan(tmp_path / "data", threads=2, rounds=1, seconds=0.05, **sizes)


def test_sections_of_tiny_sizes_from_data_to_report(tiny, tmp_path, capsys):
    assert measure(tiny, ["threads", "growth", "reading", "prediction", "hash-tables"], tmp_path / "out") == 0
    report = (tmp_path / "out/report.md").read_text()
    assert report in capsys.readouterr().out
    found = json.loads((tmp_path / "out/report.json").read_text())
    threads, growth, _, prediction, hashing = found["sections"]
    assert threads["systems"][0]["rounds"][0]["ratio"] > 0
    assert growth["systems"][0]["rounds"][0]["active"] <= 500
    assert 4000 < growth["systems"][1]["rounds"][0]["active"] < 6000
    assert prediction["systems"][0]["rounds"][0]["rows_per_second"] > 0
    assert 0 < hashing["systems"][0]["rounds"][0]["hashing_share"] < 1


def test_interleaved_rounds_of_a_tiny_network_and_pytorch(tiny):
    pytest.importorskip("torch")
    folder = str(make_data(tiny.data, tiny.speed))
    found = interleaved.train(folder, threads=2, seconds=0.1, batch_size=64, seed=0)
    assert found["rounds"] >= 1
    assert found["ratio"] == pytest.approx(found["dslide"] / found["torch"], rel=0.5)


def test_a_failing_system_makes_the_exit_code_1(tiny, tmp_path, monkeypatch, capsys):
    def section(plan):
        return Section("Broken", "", [System("broken", "builtins:int", {})], [SPEED])

    monkeypatch.setitem(SECTIONS, "broken", section)
    assert measure(tiny, ["broken"], tmp_path) == 1
    assert "| broken | failed: TypeError" in capsys.readouterr().out


def test_every_section_lists_its_comparisons_among_its_systems(tiny):
    for make in SECTIONS.values():
        section = make(tiny)
        named = {system for c in section.comparisons for system in (c.of, c.to)}
        assert named <= set(section.systems)
        assert len({system.name for system in section.systems}) == len(section.systems)


def test_every_system_can_be_called(tiny):
    for make in SECTIONS.values():
        for system in make(tiny).systems:
            module, name = system.function.split(":")
            inspect.signature(getattr(import_module(module), name)).bind(**system.arguments, seed=0)


def test_load_of_other_programs(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 0 500 0 0 0 0 0 0\ncpu0 100 0 0 500 0 0 0 0 0 0\n")
    load = machine.OtherLoad(stat)
    stat.write_text("cpu  100 0 0 900000 0 0 0 0 0 0\n")  # only idle
    assert load.share() == 0
    stat.write_text("cpu  100 0 0 500 0 0 0 900000 0 0\n")  # another machine on the same cores
    assert load.share() > 0
    assert machine.OtherLoad(tmp_path / "none").share() is None


def test_processor_is_named_without_proc(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\ncache size\t: 1 KB\n")
    assert machine.processor(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert machine.processor(tmp_path / "none")


def test_markdown_escapes_bars():
    assert markdown_table(["", "x"], [["a|b", "1"]]) == "|  | x |\n| --- | --- |\n| a\\|b | 1 |"
