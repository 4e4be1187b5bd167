"""The follow-up's suite: every domain has static bits and the ten schedules."""

import pytest

from bitcycle_lab.study.catalogue.suite import TEN
from bitcycle_lab.study.study import STUDIES

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
    for where, cycles in groups.items():
        reach, backward = where.split(", ")[2].split("/")
        assert [method.label for method in study.of(where)] == ["static", *TEN]
        static, *cyclic = study.of(where)
        assert static.config.precision.forward == int(reach.partition("-")[2])
        for method in cyclic:
            assert method.config.precision.forward == f"{method.label}:{reach}:{cycles}"
        for method in study.of(where):
            assert method.config.precision.backward == int(backward)
