"""Tasks: model + data + loss + metric."""

from bitcycle.tasks.base import TASKS, Split, Sums, Task, TrainBatches
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.tasks.samples import SampleTask

__all__ = [
    "TASKS",
    "DataConfig",
    "ModelConfig",
    "SampleTask",
    "Split",
    "Sums",
    "Task",
    "TrainBatches",
]
