"""Findings say what the published tables say: every number is looked up there."""

from __future__ import annotations

import re

from bitcycle.cost.findings import (
    CYCLED,
    DELAYED,
    ERRORS,
    STATIC,
    UNDELAYED,
    Cell,
    find_findings,
)
from bitcycle.published import read_table
from bitcycle.schedules import parse_schedule

MODELS = {
    "resnet18": "ResNet-18", "resnet34": "ResNet-34", "resnet50": "ResNet-50",
    "resnet38": "ResNet-38", "resnet74": "ResNet-74", "resnet164": "ResNet-164",
    "mobilenetv2": "MobileNetV2", "transformer": "Transformer", "lstm2": "LSTM",
}  # fmt: skip
DATA = {"wikitext103": "WikiText-103", "ptb": "PTB"}


def published() -> dict[tuple[str, str, str, str, str], tuple[float, str]]:
    """(table, model, data, method, bits) -> value and unit, of Tables 2 to 5."""
    found = {}
    for row in read_table("table2_cifar"):
        for data, column in (("CIFAR-10", "cifar10_accuracy"), ("CIFAR-100", "cifar100_accuracy")):
            key = ("CPT Table 2", MODELS[row["model"]], data, row["method"])
            found[(*key, row["precision_fw_bw"])] = float(row[column]), "%"
    for row in read_table("table3_imagenet"):
        key = ("CPT Table 3", MODELS[row["model"]], "ImageNet", row["method"])
        found[(*key, row["precision_fw_bw"])] = float(row["accuracy"]), "%"
    for row in read_table("table4_imagenet_full_precision"):
        method, bits = ("sbm", "fp32/fp32") if row["method"] == "full" else ("cpt", "8-32/fp32")
        key = ("CPT Table 4", MODELS[row["model"]], "ImageNet", method, bits)
        found[key] = float(row["accuracy"]), "%"
    for row in read_table("table5_language"):
        key = ("CPT Table 5", MODELS[row["model"]], DATA[row["dataset"]], row["method"])
        found[(*key, row["precision_fw_bw"])] = float(row["perplexity"]), "ppl"
    return found


def test_cycled_cells_are_all_of_tables_2_to_5_next_to_static_bits_at_the_same_top() -> None:
    table = published()
    expected = set()
    for (source, model, data, method, bits), (value, unit) in table.items():
        if method == "cpt":
            top = "fp32/fp32" if "32" in bits else bits.partition("-")[2]
            other, _ = table[source, model, data, "sbm", top]
            expected.add(Cell(source, model, data, bits, value, other, unit))
    assert set(CYCLED) == expected
    assert len(CYCLED) == len(expected) == 24


def test_static_cells_are_all_of_tables_2_to_5_below_8_bits_next_to_static_8_8() -> None:
    table = published()
    expected = {
        Cell(source, model, data, bits, value, table[source, model, data, "sbm", "8/8"][0], unit)
        for (source, model, data, method, bits), (value, unit) in table.items()
        if method == "sbm" and bits not in ("8/8", "fp32/fp32")
    }
    assert set(STATIC) == expected
    assert len(STATIC) == len(expected) == 11


def test_delayed_cells_are_those_of_table_7() -> None:
    starts = {0.0: tuple(value for _, _, value in UNDELAYED), **DELAYED}
    ours = {
        (model, bits, start): value
        for start, values in starts.items()
        for (model, bits, _), value in zip(UNDELAYED, values, strict=True)
    }
    theirs = {
        (MODELS[row["model"]], row["precision_fw_bw"], int(row["start_epoch_of_160"]) / 160):
            float(row["accuracy"])
        for row in read_table("table7_delayed_start")
    }  # fmt: skip
    assert ours == theirs
    losses = [
        undelayed - value
        for start, values in DELAYED.items()
        for (_, _, undelayed), value in zip(UNDELAYED, values, strict=True)
        if start < 1
    ]
    assert len(losses) == 16
    [finding] = find_findings(parse_schedule("delay@0.5(CR:4-8:8)"), parse_schedule(8))
    assert f"all 16 cells, by {min(losses):.2f} to {max(losses):.2f} points" in finding.text
    assert finding.stance == "against"


def test_shapes_are_compared_as_table_6_compares_them() -> None:
    for shape, stance in (("triangle", "mixed"), ("anneal", "against")):
        rows = {
            (r["schedule"], r["model"], r["precision_fw_bw"]): float(r["accuracy"])
            for r in read_table("table6_schedule_shapes")
        }
        cells = [key[1:] for key in rows if key[0] == shape]
        num_ahead = sum(rows[(shape, *cell)] > rows[("cosine", *cell)] for cell in cells)
        [finding] = find_findings(parse_schedule(f"{shape}:3-8:8"), parse_schedule(8))
        assert f"ahead in {num_ahead} of {len(cells)} cells" in finding.text
        assert (finding.stance, finding.source) == (stance, "CPT Table 6")


def test_stages_are_judged_by_table_1() -> None:
    rows = {
        (r["model"], r["first_stage_lr"], r["first_stage_bits"]): float(r["accuracy"])
        for r in read_table("table1_lr_vs_precision")
    }

    def num_ahead(lr: str) -> int:
        return sum(
            value > rows[model, lr, "fp32"]
            for (model, rate, bits), value in rows.items()
            if rate == lr and bits != "fp32"
        )

    assert (num_ahead("0.1"), num_ahead("0.01")) == (0, 6)
    [finding] = find_findings(parse_schedule("stages:3@0.75,8"), parse_schedule(8))
    assert "behind in 6 of 6 cells when the first half has learning rate 0.1" in finding.text
    assert "ahead in 6 of 6 when it has 0.01" in finding.text


def test_cycled_errors_are_judged_by_table_8() -> None:
    rows = {r["bw"]: float(r["accuracy"]) for r in read_table("table8_gradient_cycling")}
    cycled = [value for bits, value in rows.items() if "-" in bits]
    numbers = [min(cycled), max(cycled), rows["6"], rows["8"]]
    assert re.findall(r"\d\d\.\d\d", ERRORS.text) == [f"{number:.2f}" for number in numbers]
    assert max(cycled) < rows["8"]
    assert find_findings(parse_schedule("ramp:3-8"), parse_schedule("CR:6-8:8")) == (ERRORS,)


def test_a_schedule_gets_the_cells_at_its_bits() -> None:
    for forward, backward, stance, source, text in (
        (
            "CR:3-8:8",
            8,
            "for",
            "CPT Table 2",
            "CR at 3-8/8, 32 cycles, against static 8/8: "
            "ResNet-74 93.23 / 92.57 % (CIFAR-10), 72.35 / 71.44 % (CIFAR-100); ResNet-164",
        ),
        ("CR:4-8:32", 8, "mixed", "CPT Table 2, CPT Table 3, CPT Table 5", "73.12 / 73.32 %"),
        ("CR:8-32:32", "fp32", "for", "CPT Table 4", "70.67 / 69.76 %"),
        ("CR:3-7:8", 8, "mixed", "CPT Tables 2 to 5", "in 22 of 24 cells"),
        ("delay@0.5(CR:3-8:8)", 8, "against", "CPT Table 7", "ResNet-38 68.37 / 70.24 %"),
        ("6", 8, "against", "CPT Table 5", "Transformer 32.41 / 31.77 ppl"),
        ("6", 6, "against", "CPT Table 2, CPT Table 3", "ResNet-74 91.15 / 92.57 %"),
        ("3", 6, "against", "CPT Table 7", "static 3/6 against CR at 3-6/6: ResNet-38 62.30"),
    ):
        [finding] = find_findings(parse_schedule(forward), parse_schedule(backward))
        assert (finding.stance, finding.source) == (stance, source)
        assert text in finding.text


def test_what_no_table_measures_has_no_finding() -> None:
    for forward in ("RR:3-8:8", "CT:3-8:8", "LT:3-8:8", "ramp:3-8", "5", "fp32"):
        assert find_findings(parse_schedule(forward), parse_schedule(8)) == ()
