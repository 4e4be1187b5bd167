"""The one warning category."""

import warnings

import pytest

import bitcycle as bc
from tests.bitcycle.toys import linears, randn


def test_a_program_can_turn_our_warnings_into_errors_alone():
    model = bc.quantize_model(linears(4, 2)).eval()
    bc.set_precision(model, "w4a4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", bc.BitcycleWarning)
        warnings.warn("someone else's", UserWarning, stacklevel=1)
        with pytest.raises(bc.BitcycleWarning, match="never observed"):
            model(randn(3, 4))
