"""Settings of graph networks."""

import dataclasses

import pytest

from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import with_bits
from bitcycle_lab.recipes.graph import quantize_sums
from bitcycle_lab.train.config_file import override


def test_the_gcn_of_the_follow_up():
    config = recipe("arxiv-gcn")
    assert (config.optimizer.name, config.optimizer.lr) == ("adam", 1e-3)
    assert (config.lr.policy, config.lr.min_lr, config.steps) == ("cosine", 1e-4, 500)
    assert config.data.features == "standardized"
    assert config.model.options == {"hidden_dim": 512, "num_layers": 3, "dropout": 0.2}
    assert config.precision.quantizer_options == {}  # FP-Agg


def test_sums_are_quantized_by_an_option():
    config = with_bits(recipe("arxiv-gcn"), "static", "8/8")
    quantized = quantize_sums(config)
    assert quantized.precision.quantizer_options == {"aggregation": "quantized"}
    assert dataclasses.replace(quantized, name=config.name, precision=config.precision) == config
    words = ["--precision.quantizer_options.aggregation", "quantized"]
    assert override(config, words).precision == quantized.precision


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed"])
def test_citation_graphs_are_trained_statically_and_with_cpt(dataset):
    for model, name in (("gcn", "gcn"), ("graphsage", "sage")):
        static = recipe(f"{dataset}-{name}-static-8-8")
        cpt = recipe(f"{dataset}-{name}-cpt-3-8-8")
        assert (static.precision.forward, cpt.precision.forward) == (8, "CR:3-8:8")
        for config in (static, cpt, recipe(f"{dataset}-{name}-float32")):
            assert (config.model.name, config.data.name, config.steps) == (model, dataset, 200)
            assert config.precision.quantizer_options == {}  # FP-Agg
