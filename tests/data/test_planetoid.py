"""Planetoid graphs: standard splits, isolated test nodes, damaged and malicious files."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from bitcycle.data import load_graph

from .layouts import Payload, planetoid_parts, write_planetoid


@pytest.mark.parametrize(
    ("name", "below", "python2"),
    [
        ("cora", ".", True),
        ("citeseer", "CiteSeer/raw", False),
        ("pubmed", "pubmed", True),
        ("cora", "planetoid/Cora/raw", False),
        ("pubmed", "Planetoid/PubMed", True),
    ],
)
def test_the_graph_is_read_where_people_have_it(tmp_path, name, below, python2):
    write_planetoid(tmp_path / below, planetoid_parts(), name=name, python2=python2)
    graph = load_graph(name, tmp_path)
    assert graph.features[:, 0].tolist() == [0, 3, 6, 9, 12, 15, 60, 70, 80]
    assert graph.targets.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 1]
    assert graph.num_classes == 2


def test_edges_go_both_ways_once_without_self_loops(tmp_path):
    write_planetoid(tmp_path, planetoid_parts())
    edges = load_graph("cora", tmp_path).edge_index.t().tolist()
    assert edges == [[0, 1], [0, 2], [1, 0], [2, 0], [6, 8], [8, 6]]


def test_the_first_nodes_train_the_next_validate_and_listed_ones_test(tmp_path):
    write_planetoid(tmp_path, planetoid_parts())
    graph = load_graph("cora", tmp_path)
    assert graph.train_mask.nonzero().flatten().tolist() == [0, 1]
    assert graph.validation_mask.nonzero().flatten().tolist() == [2, 3, 4, 5]
    assert graph.test_mask.nonzero().flatten().tolist() == [6, 7, 8]


def test_isolated_test_nodes_have_no_features_and_are_in_no_mask(tmp_path):
    write_planetoid(tmp_path, planetoid_parts(is_isolated=True), name="citeseer")
    graph = load_graph("citeseer", tmp_path)
    assert graph.features[7].tolist() == [0, 0, 0]
    assert graph.features[[6, 8], 0].tolist() == [60, 80]
    assert graph.test_mask.nonzero().flatten().tolist() == [6, 8]


@pytest.mark.parametrize("part", ["x", "ally", "graph"])
def test_a_cut_off_or_malicious_file_is_refused(tmp_path, part):
    path = write_planetoid(tmp_path, planetoid_parts()) / f"ind.cora.{part}"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=rf"(?s)ind\.cora\.{part}: .*how to get it"):
        load_graph("cora", tmp_path)
    created = tmp_path / "created"
    path.write_bytes(pickle.dumps(Payload(created)))
    with pytest.raises(ValueError, match=rf"ind\.cora\.{part}: .* asks for .*open"):
        load_graph("cora", tmp_path)
    assert not created.exists()


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("y", np.eye(2)[[0]], "1 rows where x has 2"),
        ("ally", np.eye(3)[[0] * 6], "3 columns, not 2"),
        ("x", np.zeros(3), r"shape \(3,\)"),
        ("graph", [1], "dict"),
        ("graph", {}, "dict"),
        ("graph", {0: [99]}, r"outside 0\.\.8"),
        ("graph", {0: 1}, "not a list"),
        ("graph", {0: ["a"]}, "no whole number"),
        ("test.index", "", "one node number per line"),
        ("test.index", "6\n6\n7\n", "one twice"),
        ("test.index", "6\nx\n7\n", "one node number per line"),
        ("test.index", "7\n8\n9\n", "expected 3 from 6"),
        ("test.index", "6\n7\n", "2 node numbers from 6"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, part, value, problem):
    write_planetoid(tmp_path, planetoid_parts() | {part: value}, python2=False)
    with pytest.raises(ValueError, match=rf"(?s)ind\.cora\..*{problem}.*how to get it"):
        load_graph("cora", tmp_path)
