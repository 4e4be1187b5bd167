"""Tasks: a model, its data, a loss and a metric."""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
