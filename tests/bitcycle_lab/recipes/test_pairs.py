"""XNLI as the follow-up fine-tunes it, SNLI for small machines."""

import pytest

from bitcycle_lab.cost.spec import find_spec
from bitcycle_lab.recipes import list_recipes, recipe

INFOS = {info.name: info for info in list_recipes()}


def test_xnli_has_the_published_settings():
    config, info = recipe("xnli-mbert"), INFOS["xnli-mbert"]
    assert (config.task, config.data.name, config.epochs) == ("pairs", "xnli", 2)
    assert (config.optimizer.lr, config.data.batch_size) == (1e-5, 64)
    assert config.data.sequence_length == 128
    assert config.model.path == "bert-base-multilingual-cased"
    assert (info.needs_data, info.cycles) == ("xnli", 2)


def test_snli_has_cpt_and_static_bits():
    assert recipe("snli-bert-cpt-5-8-8-small").precision.forward == "CR:5-8:8"
    assert recipe("snli-bert-static-8-8-small").precision.forward == 8
    assert recipe("snli-bert-float32-small").precision.is_float


def test_the_cost_of_xnli_is_known_without_its_files_and_its_model():
    pytest.importorskip("transformers")
    spec = find_spec("xnli-mbert", roles={"forward": 8, "backward": 8})
    assert spec.total_steps == 2 * 6136  # ceil(392,702 / 64)
    assert spec.input_shape == (128,)
    model = spec.build()
    assert {p.device.type for p in model.parameters()} == {"meta"}
    # bert-base-multilingual-cased: 177,853,440 with its pooler; positions 128 of 512, 3 labels
    expected = 177_853_440 - (512 - 128) * 768 + 3 * 769
    assert sum(p.numel() for p in model.parameters()) == expected
