"""Runs as methods: labels, published values, small twins."""

import pytest

from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import with_bits
from bitcycle_lab.study.catalogue.methods import label, on_digits, with_published
from bitcycle_lab.study.catalogue.methods import method as make_method


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cifar100-resnet74-static-6-8", "static 6/8"),
        ("cifar100-mobilenetv2-anneal-4-6-6", "anneal 4-6/6"),
        ("digits-progressive-3-8-8", "progressive 3-8/8"),
        ("imagenet-resnet18-cpt-8-32", "CPT 8-32/32"),
        ("snli-bert-float32-small", "float32"),
    ],
)
def test_a_label_names_method_and_bits(name, text):
    assert label(recipe(name)) == text


def test_a_label_names_the_schedule_and_the_quantizer_of_a_base_recipe_with_bits():
    digits = recipe("digits")
    assert label(with_bits(digits, "RT-V", "3-8/8", 8)) == "RT-V 3-8/8"
    assert label(with_bits(digits, "cpt", "3-8/8", 8, quantizer="dorefa")) == "DoReFa CPT 3-8/8"


def test_published_values_are_those_of_the_asked_tables():
    large = make_method(recipe("cifar100-resnet164-cpt-3-8-8"))
    assert large.published == ()
    (of_table2,) = with_published([large], "CPT Table 2")
    assert [p.value for p in of_table2.published] == [72.9, 3.8e8, 80.5]
    (of_table6,) = with_published([large], "CPT Table 6")
    assert [p.value for p in of_table6.published] == [72.7]


@pytest.mark.parametrize("cell", ["stage1-fp32-lr0.01", "cpt-3-8-8-start160", "wageubn-6-6"])
def test_a_twin_keeps_the_rates_and_the_evaluation_of_the_large_run(cell):
    large = recipe(f"cifar100-resnet74-{cell}")
    small = on_digits(large, "cifar100-resnet74-")
    assert small.name == f"digits-{cell}"
    assert (small.optimizer, small.lr) == (large.optimizer, large.lr)
    assert small.eval.precision == large.eval.precision
    assert small.precision.skip == large.precision.skip
    assert (small.steps, large.steps) == (240, 64_000)


def test_rules_that_follow_the_length_of_the_run_follow_the_short_one():
    twin = on_digits(recipe("cifar100-resnet74-wageubn-6-6"), "cifar100-resnet74-")
    assert twin.precision.quantizer_options == {"total_steps": 240}
    small = with_bits(recipe("cifar10-resnet8"), "static", "8/8", quantizer="wageubn")
    assert small.precision.quantizer_options == {"total_steps": 512}


@pytest.mark.parametrize(
    "name", ["cpt-3-8-8", "static-8-8", "progressive-3-8-8", "cpt-3-8-8-start60", "wageubn-8-8"]
)
def test_a_small_recipe_is_the_twin_of_the_large_run_of_its_name(name):
    base = recipe("cifar100-resnet74")
    if name == "progressive-3-8-8":
        large = with_bits(base, "progressive", "3-8/8")
    else:
        large = recipe(f"cifar100-resnet74-{name}")
    assert on_digits(large, "cifar100-resnet74-") == recipe(f"digits-{name}")
