"""What this machine has, which kernel runs on it, and whether each kernel is right."""

from bitcycle_lab.doctor.report import Report
from bitcycle_lab.doctor.run import examine, find_device

__all__ = ["Report", "examine", "find_device"]
