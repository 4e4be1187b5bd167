"""What training costs: MACs, BitOPs and operand traffic, before a run and during it."""

from bitcycle.cost.bitops import CONVENTIONS, training_cost
from bitcycle.cost.macs import LayerMacs, Trace, count_macs
from bitcycle.cost.meter import CostMeter
from bitcycle.cost.product import COUNTERS, Call, Product
from bitcycle.cost.result import Cost, LayerCost

__all__ = [
    "CONVENTIONS",
    "COUNTERS",
    "Call",
    "Cost",
    "CostMeter",
    "LayerCost",
    "LayerMacs",
    "Product",
    "Trace",
    "count_macs",
    "training_cost",
]
