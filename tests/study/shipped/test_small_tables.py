"""CPT's tables for one machine."""

import pytest

from bitcycle.study.base import STUDIES

DIGITS = "small ResNet-8, digits"


@pytest.mark.parametrize("table", ["table1", "table2", "table6", "table7", "table8"])
def test_a_small_table_has_the_methods_of_resnet_74_on_digits(table):
    full, small = STUDIES[table](), STUDIES[f"{table}-small"]()
    of_resnet74 = {
        (method.group.removeprefix("ResNet-74, CIFAR-100"), method.label)
        for method in full.methods
        if method.group.startswith("ResNet-74, CIFAR-100")
    }
    on_digits = {
        (method.group.removeprefix(DIGITS), method.label)
        for method in small.methods
        if method.group.startswith(DIGITS)
    }
    assert on_digits == of_resnet74
    assert small.baseline == full.baseline


def test_a_twin_keeps_bits_and_rates_and_takes_eight_cycles():
    (method,) = [
        m for m in STUDIES["table7-small"]().of(f"{DIGITS}, 3-6/6") if m.label == "from epoch 120"
    ]
    assert method.config.precision.forward == "delay@0.75(CR:3-6:8)"
    assert method.config.precision.backward == 6
    rates = STUDIES["table1-small"]()
    (first,) = [m for m in rates.of(f"{DIGITS}, lr 0.06") if m.label == "6 bits"]
    assert (first.config.optimizer.lr, first.config.lr.warmup_lr) == (0.01, 0.06)
    assert (first.config.model.name, first.config.steps) == ("digits_resnet", 240)


def test_table_2_also_runs_on_cifar_10_with_the_whole_test_set():
    study = STUDIES["table2-small"]()
    assert len(study.of("ResNet-8, CIFAR-10")) == 8
    for method in study.of("ResNet-8, CIFAR-10"):
        assert (method.config.steps, method.config.data.subset) == (512, 10_000)


def test_imagenet_s_and_language_tables_have_their_bits():
    def labels(name, group):
        return [method.label for method in STUDIES[name]().of(group)]

    assert labels("table3-small", DIGITS) == ["static 8/8", "CPT 4-8/8", "static 6/6", "CPT 4-6/6"]
    assert labels("table4-small", DIGITS) == ["float32", "CPT 8-32/32"]
    assert labels("table5-small", "LSTM, WikiText-2") == [
        "static 8/8", "CPT 5-8/8", "static 6/8", "CPT 5-6/8",
    ]  # fmt: skip
    assert labels("table5-small", "Transformer, WikiText-2") == [
        "static 8/8", "CPT 4-8/8", "static 6/8", "CPT 4-6/8",
    ]  # fmt: skip
