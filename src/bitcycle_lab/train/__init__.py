"""The runner: a configuration in, a run directory and a result out."""

from bitcycle.lazy import lazy_package

__all__ = lazy_package(__name__)
