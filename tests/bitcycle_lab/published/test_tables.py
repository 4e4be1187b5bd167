"""The published tables inside the package."""

import pytest

from bitcycle_lab.published import BitRange, read_table


@pytest.mark.parametrize(
    ("name", "num_rows"),
    [
        ("table1_lr_vs_precision", 32),
        ("table2_cifar", 24),
        ("table3_imagenet", 12),
        ("table4_imagenet_full_precision", 4),
        ("table5_language", 8),
        ("table6_schedule_shapes", 18),
        ("table7_delayed_start", 24),
        ("table8_gradient_cycling", 6),
        ("figure5_cost", 12),
        ("range_test", 5),
    ],
)
def test_every_table_is_there_and_whole(name, num_rows):
    rows = read_table(name)
    assert len(rows) == num_rows
    assert all(None not in row and None not in row.values() for row in rows)


def test_misprints_are_corrected():
    table2 = {
        (r["model"], r["method"], r["precision_fw_bw"]): r for r in read_table("table2_cifar")
    }
    # printed as "9^103" in some copies
    assert table2["mobilenetv2", "dorefa", "8/8"]["cifar10_accuracy"] == "91.03"
    table3 = {(r["model"], r["precision_fw_bw"]): r for r in read_table("table3_imagenet")}
    # printed as 4.03e7
    assert float(table3["resnet34", "4-8/8"]["gbitops"]) == 4.03e9


def test_costs_of_one_network_fall_with_its_bits():
    for table in ("table2_cifar", "table3_imagenet", "figure5_cost"):
        rows = [r for r in read_table(table) if r["method"] in ("sbm", "cpt")]
        for model in {row["model"] for row in rows}:
            cost = {r["precision_fw_bw"]: float(r["gbitops"]) for r in rows if r["model"] == model}
            low = "4" if "4-8/8" in cost else "3"
            assert cost["8/8"] > cost[f"{low}-8/8"] > cost[f"{low}-6/6"]
            assert cost["8/8"] > cost["6/6"] > cost[f"{low}-6/6"]


@pytest.mark.parametrize(
    ("cell", "bits"), [("3-8/8", (3, 8, 8)), ("6/8", (6, 6, 8)), ("3-16/8", (3, 16, 8))]
)
def test_a_cell_becomes_bits(cell, bits):
    assert BitRange.parse(cell) == bits
