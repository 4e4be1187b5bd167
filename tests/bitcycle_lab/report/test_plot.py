"""plot(): one entry for all pictures."""

import subprocess
import sys

import pytest

from bitcycle_lab.report import plot


def test_what_has_no_picture_is_an_error_that_lists_what_has():
    with pytest.raises(ValueError, match="no picture of int; plot.. draws: .*Schedule"):
        plot(3)


@pytest.mark.slow
def test_importing_the_package_and_its_modules_needs_no_extra():
    code = (
        "import sys; sys.modules['jinja2'] = None;"
        "import bitcycle_lab.report.figures.pareto, bitcycle_lab.report.terminal;"
        "import bitcycle_lab.report.files;"
        "import bitcycle_lab.report.page;"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
