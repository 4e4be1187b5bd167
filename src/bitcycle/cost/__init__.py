"""What training costs: MACs, BitOPs and operand traffic, before a run and during it."""

from bitcycle.cost.bitops import training_cost
from bitcycle.cost.conventions import CONVENTIONS, Convention
from bitcycle.cost.count import COUNTERS, Call, Product
from bitcycle.cost.memory import Saved, measure_saved
from bitcycle.cost.meter import CostMeter
from bitcycle.cost.planner import Plan, plan
from bitcycle.cost.result import Cost, LayerCost
from bitcycle.cost.trace import LayerMacs, Norm, Trace, count_macs

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
