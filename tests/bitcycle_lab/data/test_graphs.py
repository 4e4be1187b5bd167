"""Citation graphs in the files of Planetoid and OGB."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from bitcycle_lab.data import load_graph

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
    with pytest.raises(ValueError, match=rf"ind\.cora\.{part}"):
        load_graph("cora", tmp_path)
    created = tmp_path / "created"
    path.write_bytes(pickle.dumps(Payload(created)))
    with pytest.raises(ValueError, match=rf"ind\.cora\.{part}: .*open"):
        load_graph("cora", tmp_path)
    assert not created.exists()


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("y", np.eye(2)[[0]], "1 rows"),
        ("ally", np.eye(3)[[0] * 6], "3 columns"),
        ("x", np.zeros(3), r"\(3,\)"),
        ("graph", [1], "dict"),
        ("graph", {}, "dict"),
        ("graph", {0: [99]}, r"0\.\.8"),
        ("graph", {0: 1}, "list"),
        ("graph", {0: ["a"]}, "integer"),
        ("test.index", "", "node number"),
        ("test.index", "6\n6\n7\n", "twice"),
        ("test.index", "6\nx\n7\n", "node number"),
        ("test.index", "7\n8\n9\n", "from 6"),
        ("test.index", "6\n7\n", "2 node numbers"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, part, value, problem):
    write_planetoid(tmp_path, planetoid_parts() | {part: value}, python2=False)
    with pytest.raises(ValueError, match=rf"ind\.cora\..*{problem}"):
        load_graph("cora", tmp_path)


@pytest.mark.timeout(20)
def test_neighbours_of_lists_within_lists_are_refused_at_once(tmp_path):
    nested: list[object] = []
    for _ in range(60):  # 2^60 lists when each is looked into
        nested = [nested, nested]
    write_planetoid(tmp_path, planetoid_parts() | {"graph": {0: nested}}, python2=False)
    with pytest.raises(ValueError, match="integer"):
        load_graph("cora", tmp_path)


FILES = {
    "raw/edge": "0,1\n1,0\n2,3\n3,3\n",
    "raw/node-feat": "".join(",".join([str(node / 4)] * 128) + "\n" for node in range(4)),
    "raw/node-label": "39\n0\n5\n0\n",
    "split/time/train": "3\n0\n",
    "split/time/valid": "1\n",
    "split/time/test": "2\n",
}


def write(folder: Path, *, zipped: bool = True, **changes: str | bytes) -> Path:
    for name, text in (FILES | changes).items():
        path = folder / f"{name}.csv{'.gz' if zipped else ''}"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(content) if zipped and isinstance(text, str) else content)
    return folder


@pytest.mark.parametrize(("zipped", "below"), [(True, "."), (False, "ogbn_arxiv")])
def test_arxiv_is_read_where_people_have_it(tmp_path, zipped, below):
    write(tmp_path / below, zipped=zipped)
    graph = load_graph("ogbn-arxiv", tmp_path)
    assert graph.features.shape == (4, 128)
    assert graph.features[:, 7].tolist() == [0, 0.25, 0.5, 0.75]
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert graph.targets.tolist() == [39, 0, 5, 0]
    assert graph.train_mask.tolist() == [True, False, False, True]
    assert graph.validation_mask.tolist() == [False, True, False, False]
    assert graph.test_mask.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("raw/edge", b""),
        ("raw/node-feat", b"no gzip"),
        ("raw/node-label", gzip.compress(b"1,2\n" * 99, mtime=0)[:-9]),
        ("split/time/train", "a,b\n"),
        ("raw/edge", ""),
        ("split/time/valid", ""),
        ("raw/edge", "1,2,3\n"),
        ("split/time/test", "1,2,3\n"),
        ("raw/edge", "0,4\n"),  # there are 4 nodes
        ("raw/node-label", "0\n1\n2\n40\n"),  # of 40 classes
        ("raw/node-label", "0\n1\n2\n"),
        ("split/time/valid", "-1\n"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_damaged_file_of_arxiv_is_named(tmp_path, name, content):
    write(tmp_path, **{name: content})
    with pytest.raises(ValueError, match=f"{name}.csv"):
        load_graph("ogbn-arxiv", tmp_path)
