"""JSON that people compare."""

import json

from hypothesis import given
from hypothesis import strategies as st

from bitcycle.study.publish.jsontext import WIDTH, rounded, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=15,
)  # fmt: skip


@given(value=VALUES)
def test_it_says_the_same_as_plain_json(value):
    assert json.loads(to_json(value)) == value


def test_what_fits_a_line_stands_on_one():
    runs = [{"seed": seed, "value": 91.25} for seed in range(20)]
    lines = to_json({"name": "a", "runs": runs}).splitlines()
    assert '  {"seed": 3, "value": 91.25},' in lines
    assert max(map(len, lines)) <= WIDTH


def test_twelve_digits_keep_equal_differences_equal():
    """One test image of 360 more, in every seed: rounding must not make that look like noise."""
    pairs = [(100 * k / 360, 100 * (k + 1) / 360) for k in (350, 351, 355)]
    differences = [rounded(b) - rounded(a) for a, b in pairs]
    assert max(differences) - min(differences) < 1e-8
