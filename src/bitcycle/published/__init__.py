"""Published numbers, the only copy: the papers' tables as CSV, and how to read them."""

from bitcycle.published.tables import BitRange, Published, read_table, values

__all__ = ["BitRange", "Published", "read_table", "values"]
