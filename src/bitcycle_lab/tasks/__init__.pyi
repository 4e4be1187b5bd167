from bitcycle_lab.tasks.base import TASKS as TASKS
from bitcycle_lab.tasks.base import SampleTask as SampleTask
from bitcycle_lab.tasks.base import Split as Split
from bitcycle_lab.tasks.base import Sums as Sums
from bitcycle_lab.tasks.base import Task as Task
from bitcycle_lab.tasks.base import TrainBatches as TrainBatches
from bitcycle_lab.tasks.config import DataConfig as DataConfig
from bitcycle_lab.tasks.config import ModelConfig as ModelConfig
