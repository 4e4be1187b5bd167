"""benchmarks/run_time.py: which runs it takes, and a short measurement."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.run_time import TimedMethod, add_items, choose_methods, fit_cycles, time_round
from bitcycle.native.library import instruction_set
from bitcycle_lab.study.study import Study
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.train.session import preserve_torch_settings

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "run_time.py"


def test_each_method_of_a_network_is_taken_once_and_float32_is_added():
    networks = choose_methods(find_study("table5-small"), 200)
    labels = ["float32", "static 8/8", "CPT 4-8/8", "CPT 5-8/8"]
    assert {name: [each.label for each in found] for name, found in networks.items()} == {
        "LSTM on WikiText-2": labels,
        "Transformer on WikiText-2": labels,
    }
    for method in networks["LSTM on WikiText-2"]:
        assert (method.config.steps, method.config.threads) == (200, 1)
        assert method.config.precision.is_float == (method.label == "float32")
    [(_, methods)] = choose_methods(find_study("lengths"), 200).items()  # three lengths
    assert [each.label for each in methods] == [
        "float32", "static 8/8", "CPT 3-8/8", "CPT 4-8/8", "CPT 5-8/8", "static 6/6", "CPT 3-6/6"
    ]  # fmt: skip


def test_a_study_without_the_baseline_is_refused():
    study = find_study("demo")
    others = tuple(method for method in study.methods if method.label != "static 8/8")
    with pytest.raises(ValueError, match="static 8/8"):
        choose_methods(Study(name="mine", description="", methods=others, seeds=(0,)), 100)


def test_a_cycle_keeps_enough_steps_to_reach_its_top():
    assert fit_cycles("CR:3-8:32", 200) == "CR:3-8:8"
    assert fit_cycles("CR:3-8:32", 20) == "CR:3-8:1"
    assert fit_cycles("CR:3-8:32", 8000) == "CR:3-8:32"
    assert fit_cycles("ER:3-8:8", 100) == "ER:3-8:4"
    assert fit_cycles("RR:3-8:8", 200) == "RR:3-8:2"  # needs 91 steps
    assert fit_cycles("8", 200) == "8"


def test_methods_take_their_steps_in_turn(monkeypatch):
    [(_, methods)] = choose_methods(find_study("demo"), 5).items()
    taken = []
    monkeypatch.setattr(
        "benchmarks.run_time.train_step", lambda session, batches: taken.append(id(session))
    )
    with preserve_torch_settings():
        time_round(methods, 0)
    turns = [taken[first : first + len(methods)] for first in range(0, len(taken), len(methods))]
    assert len(turns) == 5
    assert all(set(turn) == set(taken) and len(turn) == len(set(turn)) for turn in turns)


def test_neither_warm_up_steps_nor_methods_beside_it_change_a_run_without_dropout():
    [(_, methods)] = choose_methods(find_study("demo"), 5).items()
    [static, cycle] = [each for each in methods if each.label in ("static 8/8", "CPT 4-8/8")]
    ends = []
    with preserve_torch_settings():
        for warmup, others in ((0, ()), (2, ()), (1, (static,))):
            method = TimedMethod(cycle.label, cycle.config)
            time_round([*others, method], warmup)
            ends.append((method.bitops, method.weights))
            assert len(method.seconds) == len(method.cpu_seconds) == 1
            assert method.seconds[0] > 0
    assert ends[0] == ends[1] == ends[2] != (static.bitops, static.weights)


def test_a_second_measurement_replaces_only_what_it_measured(tmp_path):
    file = tmp_path / "run-times.json"
    first = {"network": "a", "instruction_set": "avx2", "is_limited_to_avx2": False, "threads": 1}
    other = {**first, "network": "b"}
    add_items(file, [{**other, "steps": 5}, {**first, "steps": 5}])
    add_items(file, [{**first, "steps": 9}])
    assert json.loads(file.read_text()) == {
        "kind": "run-times",
        "items": [{**first, "steps": 9}, {**other, "steps": 5}],
    }


@pytest.mark.slow  # two processes, one after the other
def test_a_measurement_writes_every_method_with_its_ratios(tmp_path):
    file = tmp_path / "run-time.json"
    limit = ["--avx2"] if instruction_set() == "avx512_vnni" else []
    command = [sys.executable, str(SCRIPT), "demo", "--steps", "5", "--repeats", "2", "--warmup",
               "1", "--json", str(file), *limit, "--data.batch_size", "16", "--precision.kernel",
               "native"]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [found] = json.loads(file.read_text())["items"]
    assert (found["study"], found["steps"], found["repeats"]) == ("demo", 5, 2)
    assert found["overrides"] == ["--data.batch_size", "16", "--precision.kernel", "native"]
    assert found["is_limited_to_avx2"] == bool(limit)
    assert found["instruction_set"] == ("avx2" if limit else instruction_set())
    assert found["threads"] == 1
    methods = {method["method"]: method for method in found["methods"]}
    assert list(methods) == ["float32", "static 8/8", "CPT 4-8/8"]
    for method in methods.values():
        assert len(method["milliseconds"]) == 2
    bitops = {label: method["bitops"] for label, method in methods.items()}
    assert bitops["CPT 4-8/8"] < bitops["static 8/8"]
    assert bitops["float32"] > 10 * bitops["static 8/8"]
