"""The laboratory: runs, studies and pictures of the papers' experiments, with `bitcycle`."""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
