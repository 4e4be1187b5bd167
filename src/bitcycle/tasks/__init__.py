"""Tasks: model + data + loss + metric."""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
