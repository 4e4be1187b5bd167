"""Measurements from end to end, at sizes that only show that all works."""

import pytest
import torch

from bitcycle.extras import MissingExtraError
from bitcycle.kernels import choice
from bitcycle_lab.bench import BenchConfig, run_bench
from bitcycle_lab.bench.others import installed_others
from bitcycle_lab.bench.steps import CycleBits
from bitcycle_lab.bench.workloads import WORKLOADS

SMALL = {"workloads": ("resnet20-w16",), "repeats": 2, "is_quick": True}


def test_a_bad_setting_is_an_error_at_birth():
    for options, message in (
        ({"workloads": ("resnet",)}, "'resnet'"),
        ({"kernels": ("int4",)}, "'int4'"),
        ({"repeats": 0}, "repeats .* 0"),
        ({"budget": 0.0}, "budget .* 0.0"),
        ({"bits": ("fp32",)}, "'fp32'"),
        ({"bits": ("x9",)}, "'x9'"),
        ({"bits": ("8-3/8",)}, "8.*3"),
        ({"bits": ("3-8/99",)}, "99"),
    ):
        with pytest.raises(ValueError, match=message):
            BenchConfig(**options)


def test_time_is_shown_against_bits_and_for_a_cycle():
    widths = [f"w{bits}a{bits}e8" for bits in range(2, 9)]
    texts = [str(variant) for variant in BenchConfig().variants()]
    ours = ["simulate w8a8e8", *(f"auto {bits}" for bits in (*widths, "3-8/8"))]
    inside = "auto-in-autocast w8a8e8"
    assert texts == ["float32", "bf16-autocast", *ours, inside, *installed_others()]
    config = BenchConfig(kernels=("native",))
    assert [each.bits_text for each in config.variants()] == ["", *widths, "3-8/8"]
    assert config.count_steps() == len(WORKLOADS) * (1 + 7 + 6) * (2 + 10)
    both = BenchConfig(kernels=("simulate", "auto"), bits=("w4a4e8",)).variants()
    assert [str(each) for each in both] == ["float32", "simulate w4a4e8", "auto w4a4e8"]


def test_a_cycle_is_the_mean_of_its_widths_by_their_shares():
    config = BenchConfig(kernels=("simulate",), bits=("3-5/8",), **SMALL)
    result = run_bench(config)
    row = result.find("resnet20-w16", "simulate", "3-5/8")
    assert list(row.by_width) == ["3", "4", "5"]
    shares = CycleBits(3, 5, 8).shares()
    assert abs(sum(shares.values()) - 1) < 1e-12
    mean = sum(shares[int(width)] * seconds for width, seconds in row.by_width.items())
    assert min(row.seconds) == pytest.approx(mean)
    assert len(row.seconds) == 2
    assert "3-5/8" in row.notes[0]


def test_layers_that_auto_simulates_are_named(monkeypatch):
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    result = run_bench(BenchConfig(kernels=("auto",), bits=("w8a8e8",), **SMALL))
    (note,) = result.find("resnet20-w16", "auto", "w8a8e8").notes
    assert "10 of 10 layers" in note


def test_rows_are_consistent_and_the_world_is_as_it_was():
    config = BenchConfig(kernels=("simulate", "auto"), bits=("FW8/BW8", "w4a4e8"), **SMALL)
    random = torch.get_rng_state()
    lines, places = [], []
    result = run_bench(config, say=lines.append, advance=places.append)
    assert lines == ["[1/1] resnet20-w16"]
    assert places == sorted(places)
    assert places[-1] == config.count_steps()
    assert torch.equal(torch.get_rng_state(), random)
    assert [(row.kernel, row.bits) for row in result.rows] == [
        ("float32", ""),
        ("simulate", "w8a8e8"), ("simulate", "w4a4e8"),
        ("auto", "w8a8e8"), ("auto", "w4a4e8"),
    ]  # fmt: skip
    assert result.seconds > sum(second for row in result.rows for second in row.seconds)
    assert result.budget == config.budget
    base = min(result.find("resnet20-w16", "float32").seconds)
    for row in result.rows:
        assert len(row.seconds) == 2
        assert row.ratio == min(row.seconds) / base
        assert row.saved_bytes
        assert bool(row.layers) == bool(row.bits)
    assert all(kernel == "simulate" for kernel, _ in result.rows[1].layers.values())


def test_a_variant_without_time_to_repeat_is_measured_once():
    result = run_bench(BenchConfig(kernels=("simulate",), bits=("w8a8e8",), budget=1e-6, **SMALL))
    assert all(row.is_once and len(row.seconds) == 1 for row in result.rows)
    assert " once " in str(result)


def test_a_workload_that_cannot_be_converted_says_so(monkeypatch):
    def build(is_quick):
        model = torch.nn.Bilinear(2, 2, 1)
        inputs = (torch.ones(2, 2), torch.ones(2, 2))
        load = WORKLOADS["resnet20-w16"](True)
        return type(load)(model=model, inputs=inputs, loss=lambda out: out.sum(), size="bilinear")

    monkeypatch.setitem(WORKLOADS, "bilinear", build)
    config = BenchConfig(
        workloads=("bilinear",), kernels=("simulate",), bits=("w8a8e8",), repeats=1, is_quick=True
    )
    result = run_bench(config)
    assert result.find("bilinear", "float32").seconds
    assert result.find("bilinear", "simulate", "w8a8e8").seconds == ()
    assert "bilinear: low precision not timed" in str(result)


def test_a_missing_package_leaves_a_workload_out_unless_it_was_asked_for(monkeypatch):
    def missing(is_quick):
        raise MissingExtraError("graph models need 'torch_geometric'")

    monkeypatch.setattr("bitcycle_lab.bench.run.WORKLOADS", {"gcn": missing})
    result = run_bench(BenchConfig(is_quick=True))
    assert result.rows == ()
    assert result.sizes["gcn"].startswith("left out: graph models need")
    with pytest.raises(MissingExtraError):
        run_bench(BenchConfig(workloads=("gcn",), is_quick=True))


def test_rows_name_the_quantizer_of_a_format():
    config = BenchConfig(
        workloads=("transformer-d512",), kernels=("auto",), bits=("mxfp8/mxfp8", "FW8/BW8"),
        repeats=2, is_quick=True,
    )  # fmt: skip
    result = run_bench(config)
    assert [(row.bits, row.quantizer) for row in result.rows] == [
        ("", "sbm"), ("mxfp8/mxfp8", "mx"), ("w8a8e8", "sbm"),
    ]  # fmt: skip
    assert "mxfp8/mxfp8 by mx" in str(result)
