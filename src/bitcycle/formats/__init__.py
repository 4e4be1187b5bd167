"""Number formats: their names, and rounding to them (`round_to`)."""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
