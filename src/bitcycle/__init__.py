"""bitcycle: train PyTorch models at low precision on a schedule."""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
