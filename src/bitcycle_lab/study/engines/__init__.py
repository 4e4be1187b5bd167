"""Where the runs of a study are executed: processes of this machine, or a Ray cluster."""

from bitcycle_lab.study.engines.base import Engine, make_engine

__all__ = ["Engine", "make_engine"]
