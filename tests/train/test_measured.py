"""What files of measurements say of their machine."""

import json

from bitcycle.train.measured import MACHINE, machine, measured


def test_the_machine_is_said_by_a_few_keys():
    assert tuple(machine()) == MACHINE


def test_it_is_plain_json():
    found = measured(1.23456, threads=2)
    assert found == {"machine": machine(), "threads": 2, "seconds": 1.235}
    assert json.loads(json.dumps(found)) == found
