"""Which kernel a layer gets, and the reason that the audit shows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import choice, native
from bitcycle.kernels.base import KERNELS, make_kernel
from bitcycle.kernels.choice import (
    LAYERS,
    TOPS,
    Recurrence,
    TableRow,
    decide_kernel,
    kernel_table,
    layer_kind,
    read_table,
    requested_kernel,
    table_text,
)
from bitcycle.kernels.geometry import (
    ConvGeometry,
    LinearGeometry,
    MatMulGeometry,
    PointwiseGeometry,
)
from bitcycle.warnings import BitcycleWarning

LINEAR = LinearGeometry()
CONV = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
LARGE = torch.zeros(256, 128), torch.zeros(128, 128)  # 2^22 multiply-accumulates


def row(
    layer="linear", top=8, macs_from=0, kernel="native", ratio=0.5, processor="avx2", rows_from=0
):
    return TableRow(
        processor=processor, layer=layer, top=top, macs_from=macs_from, rows_from=rows_from,
        kernel=kernel, ratio=ratio,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def table(monkeypatch, tmp_path):
    """A processor of class avx2, and a function that sets the table."""

    def use(*rows: TableRow) -> Path:
        path = tmp_path / f"table{len(list(tmp_path.iterdir()))}.csv"
        path.write_text(table_text(rows, ["a comment"]))
        monkeypatch.setenv(choice.TABLE_SWITCH, str(path))
        return path

    monkeypatch.delenv(choice.TABLE_SWITCH, raising=False)
    monkeypatch.setattr(choice, "instruction_set", lambda: "avx2")
    return use


def decide(
    geometry=LINEAR, a=LARGE[0], w=LARGE[1], tops=(8, 8, 8), recurrence=None, has_rows=False
):
    kernel, reason = decide_kernel(
        geometry, a, w, tops=tops, recurrence=recurrence, has_rows=has_rows
    )
    assert make_kernel(kernel.name) == kernel
    return kernel.name, reason


# -- asked for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["simulate", "native"])  # bf16: below
def test_a_kernel_asked_for_by_name_is_taken(name):
    kernel, reason = requested_kernel(name, device_type="cpu")
    assert kernel == make_kernel(name)
    assert reason == "asked for"


def test_auto_waits_for_the_shapes():
    kernel, reason = requested_kernel("auto", device_type="cpu")
    assert kernel.is_undecided
    assert reason == "auto: decided when shapes are known"


def test_native_without_the_library_multiplies_floats_and_warns(monkeypatch):
    warned = []
    monkeypatch.setattr(native, "HAS_LIBRARY", False)
    monkeypatch.setattr(native, "missing_reason", lambda: "it was not built")
    monkeypatch.setattr(choice, "warn_missing", lambda: warned.append(1))
    kernel, reason = requested_kernel("native", device_type="cpu")
    assert kernel is KERNELS["native"]
    assert reason == "asked for; float32 products: no native library (it was not built)"
    requested_kernel("auto", device_type="cpu")
    assert len(warned) == 2
    requested_kernel("simulate", device_type="cpu")
    requested_kernel("native", device_type="cuda")
    assert len(warned) == 2


def test_native_on_another_device_says_that_it_multiplies_floats():
    _, reason = requested_kernel("native", device_type="cuda")
    assert reason == "asked for; float32 products: the native library has no code for cuda"


def test_unknown_kernels_are_refused_on_conversion():
    with pytest.raises(ValueError, match="'int4'"):
        bc.quantize_model(nn.Linear(2, 2), kernel="int4")


def test_a_kernel_of_codes_refuses_more_than_8_bits():
    layer = bc.quantize_model(nn.Linear(4, 4), kernel="native")
    bc.set_precision(layer, "w8a8e8")
    with pytest.raises(ValueError, match="w8a8e12"):
        bc.set_precision(layer, "w8a8e12")
    assert str(bc.get_precision(layer)) == "w8a8e8"
    bc.set_precision(layer, "w8a8e8g16")  # sbm has no rule for that role
    bc.set_precision(layer, "w8a8")  # float32 is no code at all
    with pytest.raises(ValueError, match="w16a16e8|8 bits"):
        bc.PrecisionScheduler(layer, forward="CR:4-16:2", backward=8, total_steps=64)


# -- auto -----------------------------------------------------------------------------------------


def test_auto_takes_the_row_of_its_bits_and_size(table):
    table(
        row(macs_from=0, kernel="simulate", ratio=1.0),
        row(macs_from=1 << 22, ratio=0.52),
        row(macs_from=1 << 24, kernel="native", ratio=0.4),
        row(top=4, ratio=0.3),
        row(layer="matmul", ratio=0.7),
    )
    assert decide() == ("native", "auto: native, 0.52 of simulate's time in the table for avx2")
    assert decide(a=torch.zeros(255, 128)) == ("simulate", "auto: too small to gain")
    assert "0.40" in decide(a=torch.zeros(1 << 10, 128))[1]
    for tops, ratio in (((4, 4, 8), 0.3), ((3, 2, 8), 0.3), ((4, 5, 8), 0.52), ((7, 8, 2), 0.52)):
        reason = decide(tops=tops)[1]
        assert reason == f"auto: native, {ratio:.2f} of simulate's time in the table for avx2"
    table(row(top=4))  # which does not hold 5 bits
    assert decide(tops=(4, 5, 8))[1] == "auto: the table has no linear layers for avx2"
    table(row(ratio=0.7), row(layer="matmul", ratio=0.7))
    heads = torch.zeros(2, 64, 32), torch.zeros(32, 64)
    assert "0.70" in decide(MatMulGeometry(), *heads)[1]


def test_few_rows_do_not_pay_for_the_weight(table):
    table(row(kernel="simulate"), row(macs_from=1 << 10, rows_from=100))
    w = torch.zeros(64, 64)
    assert decide(w=w, a=torch.zeros(100, 64))[0] == "native"
    few = torch.zeros(9, 11, 64)
    assert decide(w=w, a=few) == ("simulate", "auto: too few rows to gain")
    assert decide(w=w, a=torch.zeros(0, 64))[1] == "auto: too small to gain"
    table(row("convolution", rows_from=50), row("recurrent", rows_from=50))
    maps = torch.zeros(2, 8, 5, 5)
    assert decide(CONV, maps, torch.zeros(16, 8, 3, 3))[0] == "native"
    assert decide(CONV, maps[:1], torch.zeros(16, 8, 3, 3))[0] == "simulate"
    for steps, name in ((10, "native"), (9, "simulate")):
        found = decide(
            LINEAR, torch.zeros(5 * steps, 4), torch.zeros(32, 4),
            recurrence=Recurrence(5, steps, (32, 8)),
        )  # fmt: skip
        assert found[0] == name


def test_auto_names_the_kind_of_layer_by_its_geometry(table):
    for kind, arguments in {
        "linear": (LINEAR, *LARGE),
        "matmul": (MatMulGeometry(), *LARGE),
        "convolution": (CONV, torch.zeros(2, 8, 4, 4), torch.zeros(8, 8, 3, 3)),
        "depthwise": (
            ConvGeometry((1, 1), (1, 1), (1, 1), 8), torch.zeros(2, 8, 4, 4),
            torch.zeros(8, 1, 3, 3),
        ),
        "recurrent": (LINEAR, *LARGE, (8, 8, 8), Recurrence(1, 2, (4, 4))),
        "node": (LINEAR, *LARGE, (8, 8, 8), None, True),
    }.items():  # fmt: skip
        table(*(row(layer=each, ratio=0.1 if each == kind else 0.9) for each in LAYERS))
        assert "0.10" in decide(*arguments)[1]
    one = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    assert "0.90" in decide(one, torch.zeros(2, 1, 4, 4), torch.zeros(8, 1, 3, 3))[1]


def test_a_1x1_convolution_is_a_kind_of_its_own_on_a_gpu_only(table):
    conv = PointwiseGeometry((2, 2), (0, 0), (1, 1), 1)
    w = torch.zeros(8, 8, 1, 1)
    assert layer_kind(conv, w) == "convolution"
    table(row("convolution", ratio=0.1), row("pointwise", ratio=0.9))
    assert "0.10" in decide(conv, torch.zeros(2, 8, 4, 4), w)[1]


def test_a_recurrence_counts_with_its_time_steps(table):
    table(row("recurrent", kernel="simulate"), row("recurrent", macs_from=1 << 20))
    x, w = torch.zeros(35, 4), torch.zeros(256, 4)
    names = [
        decide(LINEAR, x, w, recurrence=Recurrence(1, steps, (256, 64)))[0] for steps in (1, 64)
    ]  # 2^14 multiplications each
    assert names == ["simulate", "native"]


def test_auto_simulates_what_codes_cannot_carry(table):
    table(*(row(layer, top) for layer in LAYERS for top in TOPS))
    doubles = LARGE[0].double(), LARGE[1].double()
    cube = ConvGeometry((1,) * 3, (1,) * 3, (1,) * 3, 1)
    up = ConvGeometry((1, 1), (1, 1), (1, 1), 1, transposed=True)
    for arguments, reason in (
        ((LINEAR, *doubles), "float64"),
        ((LINEAR, *LARGE, (None, 8, 8)), "an operand is float32"),
        ((LINEAR, *LARGE, (8, None, 8)), "an operand is float32"),
        ((LINEAR, *LARGE, (9, 8, 8)), "more than 8 bits"),
        ((LINEAR, *LARGE, (8, 32, 8)), "more than 8 bits"),
        (
            (cube, torch.zeros(1, 8, 4, 4, 4), torch.zeros(8, 8, 3, 3, 3)),
            "a convolution of 3 dimensions multiplies in float32",
        ),
        (
            (up, torch.zeros(1, 8, 4, 4), torch.zeros(8, 8, 3, 3)),
            "a transposed convolution multiplies in float32",
        ),
    ):
        assert decide(*arguments) == ("simulate", f"auto: {reason}")


def test_auto_says_when_backward_multiplies_floats(table):
    table(row(ratio=0.5))
    head = "auto: native, 0.50 of simulate's time in the table for avx2; grad_input and grad_weight"
    assert decide(tops=(8, 8, None))[1] == f"{head} in float32: errors are float32"
    assert decide(tops=(8, 8, 12))[1] == f"{head} in float32: errors have more than 8 bits"


def test_auto_simulates_on_another_device_without_rows_and_without_the_library(monkeypatch):
    away = [SimpleNamespace(dtype=x.dtype, device=torch.device("xpu")) for x in LARGE]
    assert decide(LINEAR, *away) == ("simulate", "auto: the native library has no code for xpu")
    monkeypatch.setattr(choice, "instruction_set", lambda: "portable")
    assert decide() == ("simulate", "auto: the table has no linear layers for portable")
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    found, reason = decide()
    assert found == "simulate"
    assert reason.startswith("auto: no native library (")


def test_auto_decides_for_meta_tensors_as_on_the_cpu(table):
    table(row(kernel="simulate"), row(macs_from=1 << 22))
    for num_rows, name in ((256, "native"), (255, "simulate")):
        a, w = LARGE[0][:num_rows], LARGE[1]
        assert decide(LINEAR, a.to("meta"), w.to("meta")) == decide(LINEAR, a, w)
        assert decide(LINEAR, a, w)[0] == name


def test_a_class_without_rows_takes_those_of_the_class_it_extends(table, monkeypatch):
    for instructions, expected in (("avx512_vnni", "0.30"), ("avx2", "0.20")):
        table(row(ratio=0.2), row(ratio=0.3, processor="avx512_vnni"))
        monkeypatch.setattr(choice, "instruction_set", lambda found=instructions: found)
        assert f"{expected} of" in decide()[1]
    table(row(ratio=0.2))
    monkeypatch.setattr(choice, "instruction_set", lambda: "avx512_vnni")
    assert decide()[1].endswith("in the table for avx2")


# -- GPUs -----------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A function that decides for a linear layer on a GPU of a class."""

    def decide_on(name: str, tokens: int, layer: str = "linear", missing: str | None = None):
        monkeypatch.setattr(choice.driver, "missing_reason", lambda: missing)
        monkeypatch.setattr(choice.driver, "device_class", lambda index: name)
        shapes = (tokens, 4096), (4096, 4096)
        a, w = (
            SimpleNamespace(
                dtype=torch.float32, device=torch.device("cuda", 0), shape=torch.Size(shape),
                numel=lambda n=shape[0] * shape[1]: n,
            )
            for shape in shapes
        )  # fmt: skip
        recurrence = Recurrence(1, 2, (4, 4)) if layer == "recurrent" else None
        return decide(LINEAR, a, w, recurrence=recurrence, has_rows=layer == "node")

    return decide_on


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_87", "sm_80"), ("sm_89", "sm_89"),
        ("sm_90", "sm_90"), ("sm_100", "sm_100"), ("sm_103", "sm_103"), ("sm_110", "sm_103"),
        ("sm_120", "sm_89"), ("sm_121", "sm_89"), ("gfx942", "gfx942"), ("gfx950", "gfx942"),
        ("sm_75", None), ("gfx90a", None), ("gfx1100", None), ("sm_90a", None), ("", None),
    ],
)  # fmt: skip
def test_a_gpu_takes_the_rows_of_the_newest_class_it_extends(gpu, table, name, own):
    classes = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "gfx942")
    table(row(), *(row(processor=each, kernel="gpu", ratio=0.3) for each in classes))
    assert gpu(name, 8) == (
        ("simulate", f"auto: the table has no linear layers for {name}")
        if own is None
        else ("gpu", f"auto: gpu, 0.30 of simulate's time in the table for {own}")
    )


@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942"])
def test_the_shipped_rows_of_a_gpu_say_that_nothing_was_measured(gpu, name):
    assert gpu(name, 8192) == (
        "gpu",
        "auto: gpu, by a table from the roofline, never measured",
    )
    assert gpu(name, 8192, "node")[0] == "gpu"
    assert gpu(name, 1) == ("simulate", "auto: too small to gain")
    assert gpu(name, 8192, "recurrent") == (
        "simulate",
        f"auto: the table has no recurrent layers for {name}",
    )


def test_a_gpu_with_slow_integers_simulates(gpu):
    assert gpu("sm_103", 1 << 20) == (
        "simulate",
        "auto: simulate is fastest in the table for sm_103",
    )


@pytest.mark.parametrize(
    "missing", ["BITCYCLE_GPU=0", "Triton is not installed", "Triton has no active driver"]
)
def test_without_kernels_a_gpu_simulates_and_says_why(gpu, missing):
    assert gpu("sm_90", 8192, missing=missing) == ("simulate", f"auto: {missing}")


def test_a_measured_row_of_a_gpu_replaces_the_roofline(gpu, table):
    table(row(processor="sm_90", kernel="gpu", ratio=0.61))
    assert gpu("sm_90", 1) == ("gpu", "auto: gpu, 0.61 of simulate's time in the table for sm_90")
    assert gpu("sm_80", 8192)[1] == "auto: the table has no linear layers for sm_80"


# -- what it does not depend on -------------------------------------------------------------------


def test_the_choice_needs_no_clock_and_does_not_change_with_threads(monkeypatch):
    def fail():
        raise AssertionError("a clock was read")

    for clock in ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time"):
        monkeypatch.setattr(time, clock, fail)
    threads = torch.get_num_threads()
    found = set()
    try:
        for number in (1, 2, 4):
            torch.set_num_threads(number)
            found.add(tuple(decide(a=torch.zeros(1 << k, 128)) for k in range(0, 15, 2)))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_the_choice_leaves_the_random_generator_alone():
    before = torch.get_rng_state()
    decide()
    assert torch.equal(torch.get_rng_state(), before)


# -- the table ------------------------------------------------------------------------------------


def test_the_shipped_table_has_every_kind_of_layer_and_bits_for_every_instruction_set():
    rows = kernel_table()  # raises for unknown kernels, layers and bits
    for processor in ("avx2", "avx512_vnni"):
        found = {(each.layer, each.top) for each in rows if each.processor == processor}
        kinds = set(LAYERS) - {"pointwise"}  # a convolution there
        assert found == {(layer, top) for layer in kinds for top in TOPS}
    sizes = [(each.processor, each.layer, each.top, each.macs_from) for each in rows]
    assert len(set(sizes)) == len(sizes)
    assert sum(each.macs_from == 0 for each in rows) == len({size[:3] for size in sizes})


def test_a_table_is_read_as_written(table):
    rows = (
        row(ratio=0.25),
        row("depthwise", 4, 1 << 30, "simulate", 1.05, rows_from=7),
        replace(row(kernel="gpu", processor="sm_80"), source="roofline"),
    )
    assert read_table(table(*rows)) == rows


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("native", "int4", "'int4'"),
        ("native", "auto", "'auto'"),
        ("linear", "liner", "did you mean 'linear'"),
        (",8,", ",5,", "5"),
        (",8,", ",", "row 1"),
        (",0,0,", ",-1,0,", "-1"),
        (",0,0,", ",0,-1,", "-1"),
        ("0.50", "0", "ratio"),
        ("0.50", "fast", "'fast'"),
        ("macs_from", "macs", "columns"),
        ("measured", "measurd", "did you mean 'measured'"),
    ],
)
def test_a_damaged_table_is_one_error_on_conversion(table, old, new, named):
    path = table(row())
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=named) as error:
        bc.quantize_model(nn.Linear(2, 2))
    assert str(path) in str(error.value)


def test_a_missing_table_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv(choice.TABLE_SWITCH, str(tmp_path / "none.csv"))
    with pytest.raises(ValueError, match="none.csv"):
        bc.quantize_model(nn.Linear(2, 2))


# -- on a layer -----------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """The rows of the input and the bits at each decision: `simulate` for a single row."""
    found = []

    def decide(geometry, a, w, *, tops, recurrence, has_rows, has_bf16, **formats):
        found.append((len(a), tops))
        name = "simulate" if len(a) == 1 else "native"
        return KERNELS[name], f"auto: {len(a)} rows"

    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", decide)
    return found


def test_a_layer_decides_in_its_first_training_step_with_bits(asked):
    layer, x = bc.quantize_model(nn.Linear(128, 128)), torch.randn(128, 128)
    layer(x)  # no bits
    bc.set_precision(layer, "w3a5e6")
    layer(x[:0])  # shapes of nothing
    with pytest.warns(BitcycleWarning, match="never observed"):
        layer.eval()(x[:0])
    assert asked == []
    assert layer.decision is None
    assert bc.audit(layer)[""].kernel == "auto"
    layer.train()(x)
    layer(x[:1])
    layer.eval()(x[:1])
    # act, weight, error: rounded up to what makes a difference
    assert asked == [(128, (7, 4, 7))]
    assert layer.decision[:3] == ("native", "auto: 128 rows", True)
    found = bc.audit(layer)[""]
    assert (found.kernel, found.reason) == ("native", "auto: 128 rows")
    assert (layer.kernel, layer.kernel_reason) == (KERNELS["native"], "auto: 128 rows")
    assert layer.settings.kernel.is_undecided


def test_an_evaluation_decides_until_training_does(asked):
    layer, x = bc.quantize_model(nn.Linear(128, 128)), torch.randn(128, 128)
    bc.set_precision(layer, "w3a5e6")
    with pytest.warns(BitcycleWarning, match="never observed"):
        layer.eval()(x[:1])
    layer(x)  # the same kernel as before
    assert asked == [(1, (7, 4, 7))]
    assert layer.decision[:3] == ("simulate", "auto: 1 rows", False)
    layer.train()(x[:0])  # shapes of nothing
    assert layer.decision[:3] == ("simulate", "auto: 1 rows", False)
    for is_training in (True, False, True):
        layer.train(is_training)(x)
        assert asked == [(1, (7, 4, 7)), (128, (7, 4, 7))]
        assert layer.decision[:3] == ("native", "auto: 128 rows", True)
        assert all(plan.kernel == KERNELS["native"] for plan in layer._plans.values())


def test_a_small_layer_is_simulated_and_the_audit_says_why(table):
    table(row(top=4, kernel="simulate"), row(top=4, macs_from=1 << 10))
    layer = bc.quantize_model(nn.Linear(8, 8))
    bc.set_precision(layer, "w4a4e4")
    layer(torch.randn(4, 8))
    found = bc.audit(layer)[""]
    assert (found.kernel, found.reason) == ("simulate", "auto: too small to gain")


@pytest.mark.parametrize("kernel", ["native", "simulate"])
def test_a_forced_kernel_is_never_reconsidered(kernel, monkeypatch):
    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", None)
    layer = bc.quantize_model(nn.Linear(128, 128), kernel=kernel)
    bc.set_precision(layer, "w8a8e8")
    layer(torch.randn(128, 128)).sum().backward()
    assert bc.audit(layer)[""].kernel == kernel
    assert bc.audit(layer)[""].reason.startswith("asked for")


def test_a_kernel_that_auto_chose_takes_more_bits_in_float32(table):
    table(*(row(top=top) for top in TOPS))
    layer, x = bc.quantize_model(nn.Linear(4, 4)), torch.randn(3, 4)
    bc.set_precision(layer, "w4a4e4")
    layer(x).square().sum().backward()
    bc.set_precision(layer, "w16a16e16")
    output = layer(x)
    output.square().sum().backward()
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(output, expected, atol=1e-3, rtol=0)
    assert bc.audit(layer)[""].kernel == "native"


def test_a_run_that_began_without_the_library_goes_on_with_float32_products(monkeypatch) -> None:
    def recorded(name: str, *, has_library: bool, takes_bf16: bool = False) -> str:
        kernel = choice.recorded_kernel(name, has_library=has_library, takes_bf16=takes_bf16)
        assert kernel.takes_bf16 == takes_bf16
        return kernel.name

    assert recorded("native", has_library=False) == "simulate"
    assert recorded("native", has_library=False, takes_bf16=True) == "bf16"
    assert recorded("simulate", has_library=False) == "simulate"
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    assert recorded("native", has_library=False) == "native"  # in float32
    with pytest.raises(ValueError, match="'native'"):
        recorded("native", has_library=True)


def test_a_run_goes_on_with_the_bfloat16_products_it_began_with_whatever_the_processor_has():
    for takes_bf16 in (False, True):
        native = choice.recorded_kernel("native", has_library=True, takes_bf16=takes_bf16)
        assert (native.name, native.takes_bf16) == ("native", takes_bf16)
        for name in ("simulate", "bf16", "auto"):
            kernel = choice.recorded_kernel(name, has_library=True, takes_bf16=takes_bf16)
            assert kernel == make_kernel(name)


# -- the level bf16 -------------------------------------------------------------------------------


@pytest.fixture
def instructions(monkeypatch):
    """A function that says whether the processor multiplies bfloat16."""

    def use(has_instructions: bool) -> None:
        monkeypatch.setattr(choice.bf16, "has_instructions", lambda: has_instructions)

    use(True)
    return use


WIDE = torch.zeros(256, 256), torch.zeros(256, 256)  # 2^24 multiply-accumulates


def decide_bf16(a=WIDE[0], w=WIDE[1], geometry=LINEAR, tops=(None, None, None), recurrence=None):
    kernel, reason = decide_kernel(geometry, a, w, tops=tops, recurrence=recurrence, has_bf16=True)
    return kernel.name, reason


def test_auto_multiplies_bf16_levels_in_bfloat16_from_some_size_on(instructions):
    assert decide_bf16() == ("bf16", "auto: bfloat16 products at the level bf16")
    assert decide_bf16(a=WIDE[0][1:]) == ("simulate", "auto: too small to gain")
    steps = Recurrence(rows=2, num_steps=2, w_shape=(256, 256))
    assert decide_bf16(a=WIDE[0][4:], recurrence=steps)[0] == "bf16"
    assert decide_bf16(*(x.double() for x in WIDE)) == ("simulate", "auto: float64")
    maps, w = torch.zeros(64, 32, 64, 64), torch.zeros(32, 1, 3, 3)
    depthwise = ConvGeometry((2, 2), (1, 1), (1, 1), 32)
    assert decide_bf16(maps, w, depthwise)[0] == "simulate"
    instructions(False)
    assert decide_bf16()[0] == "simulate"


def test_integers_choose_first_and_bf16_where_they_would_be_simulated(instructions, table):
    table(row(macs_from=1 << 24))
    assert decide_bf16(tops=(8, 8, 8))[0] == "native"
    assert decide_bf16(tops=(16, 16, 16))[0] == "bf16"
    table(row(kernel="simulate"))
    assert decide_bf16(tops=(8, 8, 8))[0] == "bf16"
    assert decide_bf16(a=WIDE[0][1:], tops=(8, 8, 8))[0] == "simulate"
    assert decide(a=WIDE[0], w=WIDE[1])[0] == "simulate"  # no step at bf16


def test_bf16_asked_for_says_where_it_is_slow(instructions):
    assert requested_kernel("bf16", device_type="cpu") == (KERNELS["bf16"], "asked for")
    instructions(False)
    kernel, reason = requested_kernel("bf16", device_type="cpu")
    assert kernel is KERNELS["bf16"]
    assert reason.startswith("asked for; slow")


def test_the_switch_is_0_or_nothing(monkeypatch):
    monkeypatch.setenv(choice.bf16.SWITCH, "0")
    assert choice.bf16.has_instructions.__wrapped__() is False
    monkeypatch.setenv(choice.bf16.SWITCH, "yes")
    with pytest.raises(ValueError, match="yes"):
        choice.bf16.has_instructions.__wrapped__()
