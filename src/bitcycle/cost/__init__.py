"""What training costs: MACs, BitOPs and operand traffic, before a run and during it."""

from bitcycle.cost.bitops import CONVENTIONS, Convention, training_cost
from bitcycle.cost.macs import count_macs
from bitcycle.cost.memory import Saved, measure_saved
from bitcycle.cost.meter import CostMeter
from bitcycle.cost.plan import plan
from bitcycle.cost.plan_result import Plan
from bitcycle.cost.product import COUNTERS, Call, Product
from bitcycle.cost.result import Cost, LayerCost
from bitcycle.cost.trace import LayerMacs, Norm, Trace

__all__ = [
    "CONVENTIONS",
    "COUNTERS",
    "Call",
    "Convention",
    "Cost",
    "CostMeter",
    "LayerCost",
    "LayerMacs",
    "Norm",
    "Plan",
    "Product",
    "Saved",
    "Trace",
    "count_macs",
    "measure_saved",
    "plan",
    "training_cost",
]
