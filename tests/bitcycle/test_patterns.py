"""Names as users see them, and the patterns that pick modules."""

import pytest
import torch
from torch import nn

from bitcycle.patterns import (
    check_mapping,
    check_patterns,
    last_match,
    list_names,
    matches,
    named_modules,
    unwrap,
)
from tests.bitcycle.toys import linears, net


def entry(model, name):
    return next(e for e in named_modules(model) if name in e.names)


def chosen(model, pattern):
    return [e.name for e in named_modules(model) if matches(pattern, e)]


def test_a_name_covers_the_module_and_everything_below():
    assert chosen(net(), "head") == ["head", "head.0", "head.1", "head.2"]
    assert chosen(net(), "head.2") == ["head.2"]


def test_a_name_is_no_prefix_of_longer_names():
    model = nn.ModuleDict({"conv": nn.Identity(), "conv2": nn.Identity()})
    assert chosen(model, "conv") == ["conv"]


def test_a_glob_matches_full_dotted_paths():
    assert chosen(net(), "head.?") == ["head.0", "head.1", "head.2"]
    assert chosen(net(), "*.2") == ["head.2"]
    assert chosen(net(), "h*") == ["head", "head.0", "head.1", "head.2"]
    assert chosen(net(), "?ead") == ["head"]


def test_a_type_covers_its_instances_and_everything_below():
    assert chosen(net(), nn.Linear) == ["head.0", "head.2"]
    assert chosen(net(), nn.Sequential) == ["head", "head.0", "head.1", "head.2"]
    assert chosen(net(), nn.modules.conv._ConvNd) == ["conv"]


def test_a_name_with_glob_characters_in_it_still_matches_itself():
    model = nn.ModuleDict({"a[0]": nn.Identity(), "a0": nn.Identity()})
    assert chosen(model, "a[0]") == ["a[0]", "a0"]


def test_a_shared_module_is_listed_once_with_all_names_and_parents():
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.ModuleList([shared])})
    found = entry(model, "a.0")
    assert found.names == ["a.0", "b.0"]
    kinds = [type(parent) for parent in found.parents]
    assert kinds == [nn.ModuleDict, nn.Sequential, nn.ModuleList]
    assert chosen(model, "b") == ["a.0", "b"]


def test_wrappers_add_nothing_to_a_name():
    inner = linears(2, 2)
    wrapped = nn.DataParallel(torch.compile(inner, backend="eager"))
    assert unwrap(wrapped) is inner
    assert entry(wrapped, "0").module is inner[0]
    parent = nn.Sequential(torch.compile(inner, backend="eager"))
    assert entry(parent, "0.0").module is inner[0]


def test_a_pattern_that_matches_nothing_or_is_none_is_an_error():
    for patterns, named in (
        (["0", "fc"], "'fc'.*0, 1"),
        ([nn.Conv2d], "'Conv2d'"),
        ([3], "3"),
        ("head", "'head'"),
        (nn.Linear, "Linear"),
    ):
        with pytest.raises(ValueError, match=f"skip.*{named}"):
            check_patterns(patterns, named_modules(linears(2, 2, 2)), "skip")


def test_later_patterns_win():
    patterns = {"*": 8, "head": 4, "head.2": 2}
    model = net()
    assert last_match(patterns, entry(model, "conv")) == 8
    assert last_match(patterns, entry(model, "head.0")) == 4
    assert last_match(patterns, entry(model, "head.2")) == 2
    assert last_match({"head": 4}, entry(model, "conv")) is None


def test_a_pattern_that_later_ones_cover_entirely_is_an_error():
    entries = named_modules(net())
    with pytest.raises(ValueError, match="head.2"):
        check_mapping({"head.2": 2, "head": 4}, entries, "weight")
    check_mapping({"head": 4, "head.2": 2}, entries, "weight")


def test_long_lists_of_names_are_cut():
    entries = named_modules(linears(*[1] * 60))
    assert list_names(entries, limit=3) == "(the model itself), 0, 1, ... and 57 more"
    assert list_names([]) == "(none)"
