from bitcycle.tasks.base import TASKS as TASKS
from bitcycle.tasks.base import SampleTask as SampleTask
from bitcycle.tasks.base import Split as Split
from bitcycle.tasks.base import Sums as Sums
from bitcycle.tasks.base import Task as Task
from bitcycle.tasks.base import TrainBatches as TrainBatches
from bitcycle.tasks.config import DataConfig as DataConfig
from bitcycle.tasks.config import ModelConfig as ModelConfig
