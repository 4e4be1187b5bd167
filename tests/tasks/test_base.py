"""What every task is."""

import pytest
import torch

from bitcycle.data import Batch
from bitcycle.tasks import TASKS, DataConfig, ModelConfig, Task


def test_the_built_in_tasks_are_found_by_name():
    assert {"images", "language", "nodes"} <= set(TASKS.names())


def test_an_unknown_task_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="unknown task 'image'; .*did you mean 'images'"):
        TASKS["image"]


@pytest.mark.parametrize("name", ["images", "language", "nodes"])
def test_a_task_says_what_it_is_measured_by(name):
    assert isinstance(TASKS[name].metric, str)
    assert isinstance(TASKS[name].higher_is_better, bool)


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
