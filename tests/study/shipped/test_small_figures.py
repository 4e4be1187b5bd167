"""CPT's figures on digits."""

import pytest

from bitcycle.study.base import STUDIES


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("fig1", ["static 8/8", "progressive 3-8/8", "CPT 3-8/8"]),
        ("fig2", ["static 8/8", "progressive 3-8/8", "CPT 3-8/8"]),
        ("fig4", ["static 8/8", "CPT 3-8/8", "CPT auto-8/8"]),
        ("fig5", ["static 8/8", "static 6/6", "static 4/6", "CPT 3-8/8", "CPT 3-6/6", "CPT 3-4/6"]),
        ("fig6", ["static 8/8", "CPT 3-8/8", "CPT 4-8/8"]),
        ("fig8", ["static 8/8", "N = 2", "N = 4", "N = 8", "N = 16", "N = 32"]),
        ("fig9", ["static 8/8", "CPT 3-8/8", "static 6/6", "CPT 3-6/6"]),
    ],
)
def test_a_small_figure_has_its_runs_on_digits(name, labels):
    study = STUDIES[f"{name}-small"]()
    assert study.groups == ("small ResNet-8, digits",)
    assert [method.label for method in study.methods] == labels


def test_numbers_of_cycles_are_those_on_the_labels():
    methods = STUDIES["fig8-small"]().methods[1:]
    for method in methods:
        assert method.config.precision.forward == f"CR:3-8:{method.label.removeprefix('N = ')}"


def test_a_spread_is_measured_over_ten_seeds():
    assert STUDIES["fig9-small"]().seeds == tuple(range(10))
