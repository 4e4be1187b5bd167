"""Tasks over independent samples."""

import pytest
import torch

from bitcycle.data import Tensors
from bitcycle.tasks import DataConfig, ModelConfig, SampleTask


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


@pytest.mark.parametrize(("world_size", "num_micro"), [(2, 1), (1, 2)])
def test_processes_and_micro_batches_divide_a_step(world_size, num_micro):
    whole = copy().train_batches().batch_at(1).inputs
    sizes = {"world_size": world_size, "num_micro": num_micro}
    parts = [
        copy().train_batches(rank=rank, **sizes).batch_at(1, micro).inputs
        for micro in range(num_micro)
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(("split", "expected"), [("train", range(10)), ("test", range(10, 15))])
def test_a_pass_has_every_sample_of_the_split_in_order(split, expected):
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
