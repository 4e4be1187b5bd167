"""The cost of training: MACs, BitOPs and operand traffic, before a run and during it.

trace.py        count_macs: run one batch and list the products of every layer
count.py        the MACs of a layer's products, one counter per layer type
throughput.py   the published throughput of formats, next to BitOPs
conventions.py  BitOPs from MACs and bits: "exact", "paper", "followup"
bitops.py       training_cost: BitOPs of a run, before it, from the schedules
meter.py        CostMeter: BitOPs of a run, during it

`measure_saved`, the bytes that a training step keeps for backward, is from `bitcycle/memory.py`.
"""

from bitcycle.cost.bitops import Cost, training_cost
from bitcycle.cost.conventions import CONVENTIONS, Convention, LayerCost
from bitcycle.cost.count import COUNTERS, Call, Product
from bitcycle.cost.meter import CostMeter
from bitcycle.cost.throughput import Throughput
from bitcycle.cost.trace import LayerMacs, Norm, Trace, count_macs
from bitcycle.memory import Saved, measure_saved

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
    "Product",
    "Saved",
    "Throughput",
    "Trace",
    "count_macs",
    "measure_saved",
    "training_cost",
]
