"""Published cells of small twins."""

from bitcycle.study.find import find_study
from bitcycle.study.publish.counterpart import counterparts, cycles_apart


def test_digits_stand_for_resnet74_on_cifar100():
    found = counterparts(find_study("digits"))
    cell = found["small ResNet-8, digits: CPT 3-8/8"]
    assert (cell["where"], cell["group"]) == ("CPT Table 2", "ResNet-74, CIFAR-100")
    assert cell["training"] == "64,000 steps of 128"
    assert cell["value"] == 72.35  # CPT, Table 2: ResNet-74, CIFAR-100, 3-8/8
    assert "small ResNet-8, digits: float32" not in found  # no cell of that table


def test_the_same_data_come_first():
    found = counterparts(find_study("cifar10-small"))
    assert {cell["group"] for cell in found.values()} == {"ResNet-74, CIFAR-10"}
    assert "ResNet-8, CIFAR-10: CPT 3-8/8, N = 8" in found


def test_a_twin_of_a_table_has_the_cells_of_that_table():
    found = counterparts(find_study("table7-small"))
    assert {cell["where"] for cell in found.values()} == {"CPT Table 7"}


def test_nothing_published_stands_for_graphs():
    assert counterparts(find_study("gcn-small")) == {}


def test_fewer_cycles_than_published_are_known():
    assert cycles_apart(find_study("digits")) == [(8, 32)]
    assert cycles_apart(find_study("table1-small")) == []
    assert cycles_apart(find_study("table2")) == []


def test_a_full_size_method_is_its_own_cell():
    study = find_study("table2")
    found = counterparts(study)
    assert len(found) == len(study.methods)
