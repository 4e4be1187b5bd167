"""Comparisons for one machine."""

from bitcycle.quantizers import QUANTIZERS
from bitcycle.study.base import STUDIES


def labels(name, group):
    return [method.label for method in STUDIES[name]().of(group)]


def test_digits_has_the_main_methods():
    assert labels("digits", "small ResNet-8, digits") == [
        "float32", "static 8/8", "static 6/6", "static 4/8", "static 3/8", "CPT 3-8/8",
        "CPT 3-6/6",
    ]  # fmt: skip


def test_cifar_10_has_ten_methods():
    study = STUDIES["cifar10-small"]()
    forwards = {method.label: method.config.precision.forward for method in study.methods}
    assert forwards == {
        "float32": "fp32",
        "static 8/8": 8,
        "CPT 3-8/8, N = 8": "CR:3-8:8",
        "CPT 3-8/8, N = 32": "CR:3-8:32",
        "RR 3-8/8": "RR:3-8:8",
        "ER 3-8/8": "ER:3-8:8",
        "static 6/6": 6,
        "CPT 3-6/6, N = 8": "CR:3-6:8",
        "progressive 3-8/8": "ramp:3-8@0.5",
        "CPT 3-8/8 from 37.5 % of the run": "delay@0.375(CR:3-8:8)",
    }
    assert len(study.seeds) == 5


def test_every_quantizer_is_there_static_and_cycled():
    methods = STUDIES["quantizers-small"]().methods
    forwards = {(m.config.precision.quantizer, m.config.precision.forward) for m in methods}
    assert forwards == {(name, f) for name in QUANTIZERS.names() for f in (8, "CR:3-8:8")}


def test_graph_networks_are_there_in_both_modes():
    for model in ("GCN", "GraphSAGE"):
        assert labels("gcn-small", f"{model}, Cora") == [
            "float32", "static 8/8, FP-Agg", "CPT 3-8/8, FP-Agg", "static 8/8, Q-Agg",
            "CPT 3-8/8, Q-Agg",
        ]  # fmt: skip
    quantized = [
        m.label for m in STUDIES["gcn-small"]().methods
        if m.config.precision.quantizer_options.get("aggregation") == "quantized"
    ]  # fmt: skip
    assert sorted(quantized) == sorted(2 * ["static 8/8, Q-Agg", "CPT 3-8/8, Q-Agg"])


def test_pairs_of_sentences():
    assert labels("snli-small", "BERT, SNLI") == ["float32", "static 8/8", "CPT 5-8/8"]


def test_lengths_compare_static_bits_and_cpt_at_each():
    study = STUDIES["lengths-small"]()
    for steps, group in zip((30, 60, 120, 240, 480), study.groups, strict=True):
        assert group == f"small ResNet-8, digits, {steps} steps"
        static, cyclic = study.of(group)
        assert static.config.steps == cyclic.config.steps == steps
        assert (static.config.precision.forward, cyclic.config.precision.forward) == (8, "CR:3-8:8")
    assert len(study.seeds) == 10
