from bitcycle_lab.recipes import recipe as recipe
from bitcycle_lab.train import RunConfig as RunConfig
from bitcycle_lab.train import RunResult as RunResult
from bitcycle_lab.train import resume as resume
from bitcycle_lab.train import run as run
