"""A made-up study, and its page with everything that a page can have."""

from __future__ import annotations

import pytest

from bitcycle_lab.report.figures import layers
from bitcycle_lab.report.page import write_page
from bitcycle_lab.study.results import read_study

from .made_up import landscape, made_up_cost, range_test, result_of, write_run, write_study


@pytest.fixture
def output(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def made(output):
    """The study, as read from its folders."""
    return read_study(write_study(output), output)


@pytest.fixture(scope="session")
def page_file(tmp_path_factory):
    """The study's page with everything that a page can have."""
    output = tmp_path_factory.mktemp("page") / "runs"
    made = write_study(output)
    result = read_study(made, output)
    first = result.methods[1].runs[0]
    stored = result_of(first.config, 93.0, 600, range_test={"test": range_test().to_dict()})
    for path in sorted(first.directory.iterdir()):
        path.unlink()
    first.directory.rmdir()
    write_run(first, stored)
    landscape().write(first.directory / "landscape.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "price_method", lambda method: made_up_cost())
        return write_page(read_study(made, output))


@pytest.fixture(scope="session")
def page(page_file):
    return page_file.read_text(encoding="utf-8")
