"""What holds for every registered quantizer on its own."""

import copy
import dataclasses
import pickle

import pytest

from bitcycle.precision import ROLES
from bitcycle.quantizers import QUANTIZERS, make_quantizer

pytestmark = pytest.mark.parametrize("name", QUANTIZERS.names())


def test_it_is_frozen_equal_to_its_copies_and_hashable(name):
    quantizer = make_quantizer(name)
    pickled = pickle.loads(pickle.dumps(quantizer))
    for other in (make_quantizer(name), copy.deepcopy(quantizer), pickled):
        assert other == quantizer
        assert hash(other) == hash(quantizer)
    for field in dataclasses.fields(quantizer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(quantizer, field.name, None)


def test_it_has_rules_for_known_roles_and_at_least_weight_and_act(name):
    assert {"weight", "act"} <= make_quantizer(name).roles <= set(ROLES)


def test_its_docstring_opens_with_the_line_that_ls_shows(name):
    line = (type(make_quantizer(name)).__doc__ or "").strip().partition("\n")[0]
    assert 10 < len(line) <= 100


@pytest.mark.parametrize("bits", range(1, 17))
def test_its_integer_range_is_no_wider_than_its_bits(name, bits):
    ends = make_quantizer(name).integer_range(bits)
    if ends is not None:
        low, high = ends
        assert low < high
        assert high - low + 1 <= 2**bits
