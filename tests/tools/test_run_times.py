"""The page of the times of runs, from the files of benchmarks/run_time.py."""

import json

import pytest

from tests.tools.test_results import MACHINE
from tools.results.measurements import KINDS, kind_of
from tools.results.page import to_json
from tools.results.run_times import time_sentence

KIND = KINDS["run-times"]


def method(label, milliseconds, bitops, schedule):
    return {"method": label, "schedule": schedule, "kernel": "native", "bitops": bitops,
            "milliseconds": milliseconds, "lower_quartile": min(milliseconds),
            "cpu_share": 0.98765}  # fmt: skip


def run_time_file(network="ResNet-8 on CIFAR-10", cycle=(6.0, 7.0, 8.0), **changes):
    """Of 10 ms at static 8/8 and 20 ms in float32 a cycle takes 6, 7 and 8 ms."""
    methods = [
        method("float32", [20.0, 20.0, 20.0], 1600, "float32"),
        method("static 8/8", [10.0, 10.0, 10.0], 100, "8 / 8"),
        method("CPT 3-8/8", list(cycle), 62, "CR:3-8:8 / 8"),
        method("static 6/6", [9.0, 9.0, 9.0], 56, "6 / 6"),
    ]
    made = {"machine": {**MACHINE, "host": "mine"}, "threads": 1, "seconds": 75.25}
    return {
        "study": "lengths", "overrides": ["--data.root", "/home/me/data"], "steps": 200,
        "repeats": 3, "warmup": 5, "threads": 1, "instruction_set": "avx512_vnni",
        "is_limited_to_avx2": False, "keeps_freed_memory": True,
        "command": "python /home/me/run_time.py lengths",
        "networks": [{"network": network, **made, "methods": methods}], **changes,
    }  # fmt: skip


AVX2 = {"instruction_set": "avx2", "is_limited_to_avx2": True}


def gather(*files):
    assert {kind_of(file) for file in files} == {"run-times"}
    return json.loads(to_json(KIND.gather(files)))


def test_a_row_has_the_mean_of_the_ratios_and_its_interval():
    """0.6, 0.7, 0.8 have the mean 0.7; t(0.975, 2) = 4.303 times 0.1 / sqrt(3) is 0.248."""
    text = KIND.page(gather(run_time_file())).files()["run-times.md"]
    shown, _, folded = text.partition("<details")
    assert [line for line in shown.splitlines() if line.startswith("| ResNet")] == [
        "| ResNet-8 on CIFAR-10 | AVX-512 VNNI | CPT 3-8/8 | 0.62 | 0.70 (0.45 to 0.95) "
        "| 0.35 (0.23 to 0.47) | 6.0 | 3 |"
    ]
    assert "| AVX-512 VNNI | float32 | 16.00 | 2.00 | 1.00 | 20.0 | 3 | float32 |" in folded
    assert "| static 6/6 | 0.56 | 0.90 | 0.45 | 9.0 | 3 | 6 / 6 |" in folded
    assert (
        "**CPT up to 8 bits took 0.70 of static 8/8's time with AVX-512 VNNI (1 of 1 beyond "
        "noise), and 0.35 of float32's, with 0.62 of the bit operations (n = 3).**"
    ) in shown
    assert "The main thread had a processor for 99 % of the time or more." in folded
    assert "1 thread. Wall-clock: 1 min 15 s." in folded


def test_the_commands_repeat_every_file():
    data = gather(run_time_file(), run_time_file(**AVX2))
    end = "--data.root DATA"
    head = "python benchmarks/run_time.py lengths --steps 200 --repeats 3 --warmup 5 --threads 1"
    assert KIND.page(data).commands == [
        f"{head} --json run-time-lengths.json {end}",
        f"{head} --avx2 --json run-time-lengths-avx2.json {end}",
        "python -m tools.results gather run-time-lengths.json run-time-lengths-avx2.json "
        "--to results",
    ]


def test_networks_and_processors_are_added_and_a_repeated_one_replaces_its_own():
    data = gather(run_time_file(), run_time_file("LSTM on WikiText-2"))
    for more in (run_time_file(**AVX2), run_time_file(cycle=(9.0, 9.5, 10.0))):
        data = KIND.merge(data, gather(more))
    items = [(item["network"], item["instruction_set"], item["methods"][2]["milliseconds"][0])
             for item in data["items"]]  # fmt: skip
    assert items == [
        ("LSTM on WikiText-2", "avx512_vnni", 6.0),
        ("ResNet-8 on CIFAR-10", "avx512_vnni", 9.0),
        ("ResNet-8 on CIFAR-10", "avx2", 6.0),
    ]
    page = KIND.page(data)
    assert "0.70 to 0.95 of static 8/8's time with AVX-512 VNNI (1 of 2 beyond" in page.answer
    assert "| AVX2 only | CPT 3-8/8 |" in page.table
    assert "/home" not in json.dumps(data) + page.files()["run-times.md"]
    assert data["items"][0]["machine"] == MACHINE


def test_the_picture_has_a_bar_for_bit_operations_and_one_per_processor():
    data = gather(run_time_file(), run_time_file(cycle=(5.0, 5.1, 5.2), **AVX2))
    drawing = KIND.page(data).files()["run-times.svg"]
    for text in ("BitOPs", "time, AVX-512 VNNI", "time, AVX2 only", "0.62", "0.70", "0.51", "2.00",
                 "ResNet-8 on CIFAR-10, CPT 3-8/8"):  # fmt: skip
        assert text in drawing
    assert "16.00" not in drawing


def test_the_line_of_the_readme_has_the_ratios_over_all_networks_for_each_processor():
    data = gather(
        run_time_file(),
        run_time_file("LSTM on WikiText-2", cycle=(8.0, 8.0, 8.0)),
        run_time_file(cycle=(9.0, 9.0, 9.0), **AVX2),
    )
    assert time_sentence(data) == (
        "CPT up to 8 bits took 0.70 to 0.80 of static 8/8's time with AVX-512 VNNI (1 of 2 beyond "
        "noise) and 0.90 with AVX2 only (0 of 1), and 0.35 to 0.40 and 0.45 of float32's, with "
        "0.62 of the bit operations (n = 3)."
    )


def test_times_without_a_range_of_bits_are_refused():
    file = run_time_file()
    del file["networks"][0]["methods"][2]
    for show in (time_sentence, KIND.page):
        with pytest.raises(ValueError, match="no method of lengths has a range of bits"):
            show(gather(file))


def test_several_threads_have_rows_and_files_of_their_own():
    several = run_time_file()
    several["networks"][0]["threads"] = 2
    page = KIND.page(gather(run_time_file(), several))
    assert "| AVX-512 VNNI, 2 threads | CPT 3-8/8 |" in page.table
    assert any("run-time-lengths-2-threads.json" in command for command in page.commands)


def test_a_file_without_static_bits_to_compare_with_is_refused():
    file = run_time_file()
    del file["networks"][0]["methods"][1]
    with pytest.raises(KeyError, match="static 8/8"):
        KIND.page(gather(file))
