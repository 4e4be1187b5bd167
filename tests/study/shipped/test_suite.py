"""The ten schedules x domains."""

import pytest

from bitcycle.schedules.cycle import Cycle
from bitcycle.study.base import STUDIES
from bitcycle.study.shipped.suite import TEN

FULL = {
    "ResNet-74, CIFAR-10, 3-8/8": 8,
    "ResNet-74, CIFAR-100, 3-8/8": 8,
    "GCN, OGBN-Arxiv, 3-8/8, FP-Agg": 8,
    "GCN, OGBN-Arxiv, 3-6/6, FP-Agg": 8,
    "GCN, OGBN-Arxiv, 3-8/8, Q-Agg": 8,
    "GCN, OGBN-Arxiv, 3-6/6, Q-Agg": 8,
    "LSTM, PTB, 5-8/8": 8,
    "LSTM, PTB, 5-6/6": 8,
    "BERT, XNLI, 5-8/8": 2,
}
SMALL = {
    "small ResNet-8, digits, 3-8/8": 8,
    "GCN, Cora, 3-8/8": 8,
}
LSTM = {"LSTM, WikiText-2, 5-8/8": 8}


def test_the_ten_are_those_of_the_library():
    assert set(TEN) == set(Cycle.named())


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("schedule-suite", FULL),
        ("schedule-suite-small", SMALL),
        ("schedule-suite-lstm-small", LSTM),
    ],
)
def test_every_domain_has_static_bits_and_the_ten_schedules(name, groups):
    study = STUDIES[name]()
    assert study.kind == "suite"
    assert study.groups == tuple(groups)
    for group, cycles in groups.items():
        reach, backward = group.split(", ")[2].split("/")
        assert [method.label for method in study.of(group)] == ["static", *TEN]
        static, *cyclic = study.of(group)
        assert static.config.precision.forward == int(reach.partition("-")[2])
        for method in cyclic:
            assert method.config.precision.forward == f"{method.label}:{reach}:{cycles}"
        for method in study.of(group):
            assert method.config.precision.backward == int(backward)


def test_runs_are_counted_by_hand():
    # (static and ten schedules) x domains, 5 seeds
    assert len(list(STUDIES["schedule-suite-small"]().runs("runs"))) == 11 * 2 * 5 == 110
    assert len(list(STUDIES["schedule-suite-lstm-small"]().runs("runs"))) == 11 * 1 * 5 == 55
