"""The rounding of the self-test: the native library against plain torch."""

import pytest
import torch

from bitcycle.native import encode, formats
from bitcycle.native.library import library
from bitcycle_lab.doctor.check import Device
from bitcycle_lab.doctor.rounding import PlainTorch, check_rounding

from .small import make_small

needs_library = pytest.mark.skipif(library() is None, reason="needs the native library")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    make_small(monkeypatch)


def check():
    return check_rounding(Device(torch.device("cpu")))


@needs_library
def test_grids_and_formats_are_those_of_plain_torch():
    found = check()
    assert {each.by for each in found} == {"native library"}
    assert [each for each in found if each.outcome != "passed"] == []
    assert {"sbm 3", "wageubn 3", "mxfp4", "hadamard"} <= {each.bits for each in found}


@needs_library
def test_a_wrong_step_of_a_grid_is_found(monkeypatch):
    right = encode.quantize

    def wrong(*args, **options):
        made = right(*args, **options)
        return made._replace(scale=made.scale * (1 + 2**-20))

    monkeypatch.setattr(encode, "quantize", wrong)
    failed = {each.bits for each in check() if each.outcome == "failed"}
    assert "sbm 3" in failed
    assert "mxfp4" not in failed


@needs_library
def test_one_wrong_element_of_a_format_is_found(monkeypatch):
    right = formats.round_blocks

    def wrong(x, *args, **options):
        made = right(x, *args, **options)
        made.view(-1)[-1] += 1
        return made

    monkeypatch.setattr(formats, "round_blocks", wrong)
    failed = {each.bits: each.reason for each in check() if each.outcome == "failed"}
    assert set(failed) == {"mxfp4", "fp8"}
    assert failed["fp8"].startswith("ArithmeticError: 1 of ")


def test_within_plain_torch_no_fused_function_runs():
    x = torch.randn(200, 200)
    assert encode.is_available(x, torch.float32) == (library() is not None)
    with PlainTorch():
        assert not encode.is_available(x, torch.float32)


def test_without_fused_functions_there_is_nothing_to_compare():
    [only] = check_rounding(Device(torch.device("cuda")))  # no tensor is made
    if not torch.cuda.is_available():
        assert only.outcome == "not run"
        assert only.by == "Triton"
