"""The papers' tables as CSV files, the only copy of published numbers, and their reader."""

from bitcycle_lab.published.tables import BitRange, Published, display_name, read_table, values

__all__ = ["BitRange", "Published", "display_name", "read_table", "values"]
