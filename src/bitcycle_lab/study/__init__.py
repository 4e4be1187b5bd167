"""Studies: many runs and the question they answer.

>>> from bitcycle_lab.study import find_study
>>> [method.label for method in find_study("demo").methods]
['float32', 'static 8/8', 'CPT 4-8/8']
"""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
