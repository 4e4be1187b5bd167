"""Labels and groups of shipped studies."""

from dataclasses import replace

import pytest

from bitcycle.recipes import recipe
from bitcycle.study.shipped.parts import (
    from_recipe,
    group,
    label,
    notes_of,
    small_study,
    with_published,
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cifar100-resnet74-static-6-8", "static 6/8"),
        ("cifar100-resnet74-progressive-3-8-8", "progressive 3-8/8"),
        ("cifar100-mobilenetv2-anneal-4-6-6", "anneal 4-6/6"),
        ("digits-rt-v-3-8-8", "RT-V 3-8/8"),
        ("digits-sbm-full-8-8", "SBM full 8/8"),
        ("digits-dorefa-cpt-3-8-8", "DoReFa CPT 3-8/8"),
        ("imagenet-resnet18-cpt-8-32", "CPT 8-32/32"),
        ("snli-bert-float32-small", "float32"),
    ],
)
def test_a_label_names_method_and_bits(name, text):
    assert label(recipe(name)) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cifar10-resnet8-float32-small", "ResNet-8, CIFAR-10"),
        ("digits-float32", "small ResNet-8, digits"),
        ("arxiv-gcn-float32", "GCN, OGBN-Arxiv"),
        ("wikitext103-transformer-float32", "Transformer, WikiText-103"),
        ("snli-bert-float32-small", "BERT, SNLI"),
    ],
)
def test_a_group_names_model_and_data(name, text):
    assert group(recipe(name)) == text


def test_published_values_are_those_of_the_asked_tables():
    method = from_recipe("cifar100-resnet164-cpt-3-8-8")
    assert method.published == ()
    (of_table2,) = with_published([method], "CPT Table 2")
    assert [p.value for p in of_table2.published] == [72.9, 3.8e8, 80.5]
    (of_table6,) = with_published([method], "CPT Table 6")
    assert [p.value for p in of_table6.published] == [72.7]


def test_notes_of_a_table_are_said_once():
    assert notes_of("cpt-table3") == ("published costs count 1/14 of the samples of 90 epochs",)


def test_a_small_study_gives_every_run_one_thread_and_changes_nothing_else():
    method = from_recipe("cora-gcn-static-8-8")
    study = small_study("mine", "a question", [method], baseline="static 8/8", seeds=4)
    assert study.methods == (replace(method, config=replace(method.config, threads=1)),)
    assert (study.seeds, study.scale) == ((0, 1, 2, 3), "small")
