"""XNLI as the follow-up fine-tunes it, SNLI for small machines."""

import pytest

from bitcycle.analysis.training_spec import find_spec
from bitcycle.recipes import list_recipes, recipe

INFOS = {info.name: info for info in list_recipes()}


def test_xnli_has_the_published_settings():
    config = recipe("xnli-mbert-cpt-5-8-8")
    assert (config.task, config.data.name, config.epochs) == ("pairs", "xnli", 2)
    assert (config.optimizer.lr, config.data.batch_size) == (1e-5, 64)
    assert config.data.sequence_length == 128
    assert (config.precision.forward, config.precision.backward) == ("CR:5-8:2", 8)
    assert recipe("xnli-mbert-static-8-8").precision.forward == 8
    assert recipe("xnli-mbert-float32").precision.is_float
    assert config.model.path == "bert-base-multilingual-cased"
    assert INFOS[config.name].needs_data == "xnli"
    assert "--model.path" in INFOS[config.name].description
    assert "unpublished" in INFOS[config.name].description


def test_xnli_has_the_ten_schedules():
    for name in ("lr", "cr", "er", "rr", "lt", "ct", "et-h", "et-v", "rt-h", "rt-v"):
        assert recipe(f"xnli-mbert-{name}-5-8-8").precision.forward == f"{name.upper()}:5-8:2"


def test_the_cost_of_xnli_is_known_without_its_files_and_its_model():
    pytest.importorskip("transformers")
    subject = find_spec("xnli-mbert-static-8-8", roles={})
    assert subject.total_steps == 2 * 6136  # ceil(392,702 / 64)
    assert subject.input_shape == (128,)
    model = subject.build()
    assert {p.device.type for p in model.parameters()} == {"meta"}
    # bert-base-multilingual-cased: 177,853,440 with its pooler; positions 128 of 512, 3 labels
    expected = 177_853_440 - (512 - 128) * 768 + 3 * 769
    assert sum(p.numel() for p in model.parameters()) == expected
