"""The tables of docs/formats.md are those of the code."""

import re
from pathlib import Path

import pytest
import torch

from bitcycle.formats import list_formats, round_to
from bitcycle.quantizers import QUANTIZERS

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


def table(first: str) -> list[list[str]]:
    """The rows of the table whose first column has this title."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^\| {first} \|.*\n\|[-|: ]+\n((?:\|.*\n)+)", text, re.M)
    assert found, first
    return [
        [re.sub(r"\[?`(\w+)`.*", r"\1", cell.strip()) for cell in line.split("|")[1:-1]]
        for line in found[1].splitlines()
    ]


def test_the_table_of_formats_has_each_with_its_numbers():
    expected = [
        [each.name, each.element, str(each.bits), str(each.block or ""), f"{each.max_value:.3g}"]
        if each.max_value < 1000 or each.max_value > 1e6
        else [each.name, each.element, str(each.bits), str(each.block or ""), f"{each.max_value:g}"]
        for each in list_formats()
    ]
    assert [row[:5] for row in table("format")] == expected


def test_the_errors_of_the_table_are_those_of_normal_numbers():
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(0))
    for row, each in zip(table("format"), list_formats(), strict=True):
        error = 100 * (round_to(x, each) - x).norm() / x.norm()
        assert float(row[6].removesuffix(" %")) == pytest.approx(error.item(), abs=0.03), each
    text = PAGE.read_text(encoding="utf-8")
    for name, shown in re.findall(r"`(int\d)` (?:has )?([\d.]+) %", text):
        error = 100 * (round_to(x, name) - x).norm() / x.norm()
        assert float(shown) == pytest.approx(error.item(), abs=0.03), name


def test_the_table_of_quantizers_has_the_formats_of_each():
    rows = {row[0]: row[1].removeprefix("also ").split(", ") for row in table("quantizer")}
    first, everyones = next(iter(rows.items()))
    assert (first, everyones) == ("all nine", ["numbers of bits", "bf16", "fp16"])
    assert len(QUANTIZERS) == 9
    for name in QUANTIZERS:
        own = [each.name for each in list_formats() if each.kind in QUANTIZERS[name].kinds]
        assert {"integer", "float"} <= set(QUANTIZERS[name].kinds)
        assert sorted([*everyones[1:], *rows.get(name, [])]) == sorted(own), name
