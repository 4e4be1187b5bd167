"""What every task is: its configuration, names that fit, batches of independent samples."""

import pytest
import torch

from bitcycle_lab.data import DATASETS, Batch, Tensors
from bitcycle_lab.models import MODELS
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig, SampleTask, Task
from bitcycle_lab.tasks.base import check_names
from bitcycle_lab.tasks.config import model_kind


def test_the_built_in_tasks_are_found_by_name():
    assert {"images", "language", "nodes"} <= set(TASKS.names())


def test_an_unknown_task_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="'image'.*did you mean 'images'"):
        TASKS["image"]


class Plain(Task):
    """As little as a task can be."""

    metric, higher_is_better, has_validation = "loss", False, False

    def build_model(self):
        return torch.nn.Linear(3, 1)

    def train_batches(self, *, rank=0, world_size=1, num_micro=1):
        raise NotImplementedError

    def eval_batches(self, split, *, rank=0, world_size=1):
        return []

    def loss(self, model, batch):
        raise NotImplementedError

    def metrics(self, sums):
        return {"loss": sums["loss"]}


@pytest.fixture
def task():
    return Plain(ModelConfig(), DataConfig())


def test_a_task_of_ones_own_may_take_any_name():
    Plain.check(ModelConfig(name="anything", options={"a": 1}), DataConfig(name="at-all"))


def test_samples_of_a_step_are_counted_over_processes_and_micro_batches(task):
    batch = Batch(inputs=torch.zeros(16, 3), targets=torch.zeros(16), share=16 / 64)
    assert task.num_samples(batch) == 64


def test_uneven_slices_give_the_same_count(task):
    slices = [
        Batch(inputs=torch.zeros(n, 3), targets=torch.zeros(n), share=n / 21) for n in (10, 11)
    ]
    assert [task.num_samples(batch) for batch in slices] == [21, 21]


def test_cost_is_traced_with_the_first_samples_of_a_batch(task):
    batch = Batch(inputs=torch.arange(12.0).view(4, 3), targets=torch.zeros(4))
    (example,) = task.example_inputs(batch)
    assert example.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_task_carries_no_state_unless_it_says_so(task):
    task.start_pass()
    task.to("cpu")
    assert task.state_dict() == {}
    task.load_state_dict({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0), ("eval_batch_size", 0), ("sequence_length", 0), ("subset", 0),
        ("subset", 1.5), ("validation", -3), ("validation", 0.0),
        ("vocabulary", 2),  # <unk>, <eos> and a word are 3
    ],
)  # fmt: skip
def test_an_amount_of_data_that_cannot_be_is_an_error(name, value):
    with pytest.raises(ValueError, match=rf"data\.{name} \({value}\)"):
        DataConfig(**{name: value})


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({"name": "resnet2O"}, {}, "'resnet2O'.*did you mean 'resnet20'"),
        ({}, {"name": "cifar"}, "'cifar'.*did you mean 'cifar10'"),
        ({"options": {"num_class": 3}}, {}, "'num_class'.*did you mean 'num_classes'"),
        ({"name": "lstm_lm"}, {}, "'lstm_lm'.*'language'.*'image'"),
        ({}, {"name": "cora"}, "'cora'.*'graph'.*'image'"),
        ({"path": "here"}, {}, r"model\.path \(here\)"),
        ({}, {"vocabulary": 100}, r"data\.vocabulary \(100\)"),
    ],
)
def test_what_does_not_fit_the_task_is_an_error(model, data, message):
    with pytest.raises(ValueError, match=message):
        check_names("image", ModelConfig(**model), DataConfig(**data))


def test_every_model_and_every_dataset_is_of_a_kind_that_some_task_takes():
    kinds = {"image", "language", "graph", "pair"}
    assert {model_kind(entry.options) for _, entry in MODELS.items()} == kinds
    assert {info.kind for _, info in DATASETS.items()} == kinds


def test_what_fits_passes_without_reading_anything():
    for task, model, data in (
        ("images", "resnet20", "cifar100"),
        ("language", "lstm_lm", "ptb"),
        ("language", "transformer_lm", "wikitext-103"),
        ("nodes", "gcn", "ogbn-arxiv"),
        ("pairs", "bert", "xnli"),
    ):
        TASKS[task].check(ModelConfig(name=model), DataConfig(name=data, root="/nowhere"))


@pytest.mark.parametrize("name", ["subset", "validation"])
@pytest.mark.parametrize(
    ("task", "model", "data"), [("language", "lstm_lm", "ptb"), ("nodes", "gcn", "cora")]
)
def test_text_and_graphs_have_their_own_splits(task, model, data, name):
    with pytest.raises(ValueError, match=rf"data\.{name} \(0.1\)"):
        TASKS[task].check(ModelConfig(name=model), DataConfig(name=data, **{name: 0.1}))


class Copy(SampleTask):
    """Ten samples to train on, five to test."""

    metric, higher_is_better = "loss", False

    def __init__(self, model, data, *, seed=0, validation=None):
        numbers = torch.arange(15.0)
        splits = {"train": Tensors(numbers[:10], numbers[:10]),
                  "test": Tensors(numbers[10:], numbers[10:])}  # fmt: skip
        if validation is not None:
            splits["validation"] = validation
        super().__init__(model, data, seed=seed, splits=splits)

    def build_model(self):
        return torch.nn.Identity()

    def loss(self, model, batch):
        loss = (model(batch.inputs) - batch.targets).square().mean()
        return loss, {"loss": loss, "count": torch.tensor(1)}

    def metrics(self, sums):
        return {"loss": sums["loss"] / sums["count"]}


def copy(**options):
    return Copy(ModelConfig(), DataConfig(batch_size=4, eval_batch_size=2), **options)


def test_an_epoch_has_every_training_sample_once_in_an_order_of_the_seed():
    orders = []
    for seed in (0, 0, 1):
        batches = copy(seed=seed).train_batches()
        assert batches.steps_per_epoch == 3
        orders.append(torch.cat([batches.batch_at(step).inputs for step in range(3)]).tolist())
    assert sorted(orders[0]) == list(range(10))
    assert orders[0] == orders[1] != orders[2]


def test_processes_and_micro_batches_divide_a_step():
    for world_size, num_micro in ((2, 1), (1, 2)):
        whole = copy().train_batches().batch_at(1).inputs
        sizes = {"world_size": world_size, "num_micro": num_micro}
        parts = [
            copy().train_batches(rank=rank, **sizes).batch_at(1, micro).inputs
            for micro in range(num_micro)
            for rank in range(world_size)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_a_pass_has_every_sample_of_the_split_in_order():
    for split, expected in (("train", range(10)), ("test", range(10, 15))):
        inputs = [batch.inputs for batch in copy().eval_batches(split)]
        assert torch.cat(inputs).tolist() == list(expected)
        shared = [
            number
            for rank in range(2)
            for batch in copy().eval_batches(split, rank=rank, world_size=2)
            for number in batch.inputs.tolist()
        ]
        assert sorted(shared) == list(expected)


def test_there_is_a_validation_split_if_one_was_given():
    assert not copy().has_validation
    assert copy(validation=Tensors(torch.ones(2), torch.ones(2))).has_validation


def test_samples_move_to_the_device_that_uses_them():
    task = copy()
    task.to("meta")
    assert {samples.inputs.device.type for samples in task.splits.values()} == {"meta"}
