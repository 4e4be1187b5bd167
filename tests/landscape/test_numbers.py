"""Numbers in JSON files."""

import json
import math

from bitcycle.landscape.numbers import from_plain, to_plain


def test_numbers_come_back_to_the_bit_through_plain_json():
    values = (0.1, 1 / 3, 5e-324, -0.0, math.inf, -math.inf, 7)
    text = json.dumps(to_plain({"values": values}), allow_nan=False)
    back = [from_plain(value) for value in json.loads(text)["values"]]
    assert [x.hex() for x in back] == [float(x).hex() for x in values]
    assert math.isnan(from_plain(to_plain(math.nan)))


def test_texts_and_whole_numbers_stay():
    assert to_plain({"a": ("nan", None, 3, True)}) == {"a": ["nan", None, 3, True]}
