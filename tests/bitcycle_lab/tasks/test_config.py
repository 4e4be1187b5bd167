"""The metric of a task without the task's file."""

import pytest

from bitcycle_lab.tasks import TASKS, Task
from bitcycle_lab.tasks.config import task_metric


@pytest.mark.parametrize("task", TASKS.names())
def test_the_source_of_a_task_says_the_metric_that_the_class_has(task):
    assert task_metric(task) == (TASKS[task].metric, TASKS[task].higher_is_better)


def test_a_task_of_user_code_is_asked_itself(monkeypatch):
    class Mine(Task):
        metric, higher_is_better = "regret", False

    monkeypatch.setitem(TASKS._entries, "mine", Mine)
    assert task_metric("mine") == ("regret", False)


def test_an_unknown_task_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="'image'.*did you mean 'images'"):
        task_metric("image")
