"""The runner: a configuration in, a run directory and a result out."""

from bitcycle.train.config import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RangeTestConfig,
    RunConfig,
    SwaConfig,
    TrackingConfig,
)
from bitcycle.train.result import RunResult
from bitcycle.train.run import resume, run

__all__ = [
    "CheckpointConfig",
    "EvalConfig",
    "LrConfig",
    "OptimizerConfig",
    "PrecisionConfig",
    "RangeTestConfig",
    "RunConfig",
    "RunResult",
    "SwaConfig",
    "TrackingConfig",
    "resume",
    "run",
]
