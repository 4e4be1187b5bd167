"""Models, recipes and files by name, without reading data."""

from __future__ import annotations

import pytest
import torch

from bitcycle.nn.layer import QuantizedLayer
from bitcycle_lab.cost.spec import (
    NUM_NODES,
    TrainingSpec,
    find_spec,
    parse_options,
    parse_shape,
)
from bitcycle_lab.models import build_model
from bitcycle_lab.recipes import recipe
from bitcycle_lab.train.config import PrecisionConfig
from bitcycle_lab.train.config_file import to_yaml

ROLES = {"forward": "CR:3-8:32", "backward": "8"}


def test_a_model_has_the_papers_length_and_batch_unless_told_otherwise() -> None:
    spec = find_spec("resnet20", roles=ROLES)
    assert (spec.total_steps, spec.batch_size, spec.precision.skip) == (64_000, 128, ())
    spec = find_spec(
        "resnet20", roles=ROLES, total_steps=7, batch_size=3, skip=["fc"], options={"width": 8}
    )
    assert (spec.total_steps, spec.batch_size, spec.options) == (7, 3, {"width": 8})
    assert not isinstance(spec.build().fc, QuantizedLayer)


def test_a_recipe_brings_model_sizes_bits_and_length() -> None:
    spec = find_spec("cifar100-resnet74-cpt-3-8-8", roles={})
    assert spec.options == {"num_classes": 100, "in_channels": 3}
    assert spec.precision == recipe("cifar100-resnet74-cpt-3-8-8").precision
    assert (spec.total_steps, spec.batch_size) == (64_000, 128)
    assert spec.build().fc.out_features == 100


def test_a_yaml_file_is_as_good_as_a_recipe(tmp_path) -> None:
    pytest.importorskip("jsonargparse")
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(recipe("digits-cpt-3-8-8")))
    assert find_spec(str(path), roles={}) == find_spec("digits-cpt-3-8-8", roles={})
    with pytest.raises(ValueError, match="other.yaml"):
        find_spec(str(tmp_path / "other.yaml"), roles={})


def test_epochs_become_steps_where_the_size_of_the_data_is_known() -> None:
    spec = find_spec("imagenet-resnet18-cpt-4-8-8", roles={})
    assert spec.total_steps == 90 * 5005  # 1,281,167 images in batches of 256
    name = "ptb-lstm-cpt-5-8-8"
    with pytest.raises(ValueError, match="--total-steps"):
        find_spec(name, roles={})
    assert find_spec(name, roles={}, total_steps=9).total_steps == 9


def test_a_graph_has_all_its_nodes_in_a_step() -> None:
    pytest.importorskip("torch_geometric")
    spec = TrainingSpec(model="gcn", precision=PrecisionConfig(), batch_size=NUM_NODES["cora"])
    model = spec.build()
    assert spec.is_graph
    assert [t.device.type for t in spec.inputs(model, 16)] == ["cpu", "cpu"]
    with pytest.raises(ValueError, match="gcn"):
        find_spec("gcn", roles=ROLES, input_shape=(3, 4)).inputs(model, 16)


def test_models_have_no_values_and_the_shape_that_is_asked_for() -> None:
    spec = find_spec("resnet8", roles=ROLES, input_shape=(3, 64, 48))
    model = spec.build()
    assert all(p.is_meta for p in model.parameters())
    (x,) = spec.inputs(model, 5)
    assert (x.shape, x.is_meta) == ((5, 3, 64, 48), True)


def test_tokens_stay_whole_numbers() -> None:
    spec = find_spec("transformer_lm", roles=ROLES, input_shape=(17,))
    (tokens,) = spec.inputs(build_model("transformer_lm", vocab_size=9), 2)
    assert (tokens.shape, tokens.dtype) == ((2, 17), torch.int64)


def test_a_shape_that_does_not_fit_is_an_error_with_one_that_does() -> None:
    spec = find_spec("resnet8", roles=ROLES, input_shape=(64,))
    with pytest.raises(ValueError, match="3x32x32"):
        spec.inputs(build_model("resnet8"), 1)


@pytest.mark.parametrize("wrong", ["3x", "0x3", ""])
def test_a_shape_that_is_none_is_an_error(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"'{wrong}'"):
        parse_shape(wrong)


@pytest.mark.parametrize("wrong", ["width", "width=wide"])
def test_an_option_that_is_none_is_an_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="width"):
        parse_options([wrong])
