"""bitcycle: train PyTorch models at low precision on a schedule."""

from bitcycle import quantizers, schedules
from bitcycle.assign import at_precision, get_precision, set_precision
from bitcycle.audit import Audit, audit
from bitcycle.calibrate import calibrate
from bitcycle.collect import collect
from bitcycle.convert import float_state_dict, quantize_model, unquantize_model
from bitcycle.cost import CostMeter, training_cost
from bitcycle.health import NonFiniteError
from bitcycle.matmul import MatMul
from bitcycle.precision import Precision
from bitcycle.range_test import RangeTest, RangeTestError, precision_range_test
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import (
    Anneal,
    Cycle,
    Delay,
    Ramp,
    Sequence,
    Stages,
    Static,
    Triangle,
    list_schedules,
    parse_schedule,
    schedule,
)
from bitcycle.train import RunConfig, RunResult, resume, run
from bitcycle.version import VERSION as __version__
from bitcycle.warnings import BitcycleWarning

__all__ = [
    "Anneal",
    "Audit",
    "BitcycleWarning",
    "CostMeter",
    "Cycle",
    "Delay",
    "MatMul",
    "NonFiniteError",
    "Precision",
    "PrecisionScheduler",
    "Ramp",
    "RangeTest",
    "RangeTestError",
    "RunConfig",
    "RunResult",
    "Sequence",
    "Stages",
    "Static",
    "Triangle",
    "__version__",
    "at_precision",
    "audit",
    "calibrate",
    "collect",
    "float_state_dict",
    "get_precision",
    "list_schedules",
    "parse_schedule",
    "precision_range_test",
    "quantize_model",
    "quantizers",
    "resume",
    "run",
    "schedule",
    "schedules",
    "set_precision",
    "training_cost",
    "unquantize_model",
]
