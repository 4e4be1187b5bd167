"""The report page: one HTML file with every chart, table and setting, which opens from disk."""

from bitcycle_lab.report.page.write import write_page, write_run_page

__all__ = ["write_page", "write_run_page"]
