"""What the built-in tasks make of names."""

import pytest

from bitcycle.data import DATASETS
from bitcycle.models import MODELS
from bitcycle.tasks import TASKS, DataConfig, ModelConfig
from bitcycle.tasks.names import check_names, model_kind


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({"name": "resnet2O"}, {}, "unknown model 'resnet2O'.*did you mean 'resnet20'"),
        ({}, {"name": "cifar"}, "unknown dataset 'cifar'.*did you mean 'cifar10'"),
        (
            {"options": {"num_class": 3}},
            {},
            "unknown option of model 'digits_resnet' 'num_class'.*did you mean 'num_classes'",
        ),
        ({"name": "lstm_lm"}, {}, "model 'lstm_lm' is of kind 'language', .* 'image': digits_"),
        ({}, {"name": "cora"}, "dataset 'cora' is of kind 'graph', .* 'image': cifar10"),
    ],
)
def test_a_name_that_does_not_fit_is_an_error_that_lists_what_does(model, data, message):
    with pytest.raises(ValueError, match=message):
        check_names("image", ModelConfig(**model), DataConfig(**data))


def test_a_folder_of_a_model_is_refused_where_none_is_read():
    with pytest.raises(ValueError, match=r"model\.path \(here\) is for the task pairs"):
        check_names("image", ModelConfig(path="here"), DataConfig())


def test_a_vocabulary_is_refused_where_there_are_no_words():
    data = DataConfig(name="digits", vocabulary=100)
    with pytest.raises(ValueError, match=r"data.vocabulary \(100\) is for the task language"):
        check_names("image", ModelConfig(), data)


def test_every_model_and_every_dataset_is_of_a_kind_that_some_task_takes():
    kinds = {"image", "language", "graph", "pair"}
    assert {model_kind(entry) for _, entry in MODELS.items()} == kinds
    assert {info.kind for _, info in DATASETS.items()} == kinds


@pytest.mark.parametrize(
    ("task", "model", "data"),
    [
        ("images", "resnet20", "cifar100"),
        ("language", "lstm_lm", "ptb"),
        ("language", "transformer_lm", "wikitext-103"),
        ("nodes", "gcn", "ogbn-arxiv"),
        ("pairs", "bert", "xnli"),
    ],
)
def test_what_fits_passes_without_reading_anything(task, model, data):
    TASKS[task].check(ModelConfig(name=model), DataConfig(name=data, root="/nowhere"))


@pytest.mark.parametrize(("task", "model", "data"), [
    ("language", "lstm_lm", "ptb"), ("nodes", "gcn", "cora"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["subset", "validation"])
def test_text_and_graphs_have_their_own_splits(task, model, data, name):
    with pytest.raises(
        ValueError, match=rf"data\.{name} \(0.1\).* do(es)? not apply to a (text|gra)"
    ):
        TASKS[task].check(ModelConfig(name=model), DataConfig(name=data, **{name: 0.1}))
