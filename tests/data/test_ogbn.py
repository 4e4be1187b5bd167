"""OGBN-Arxiv's CSV files: contents, splits, missing and damaged ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bitcycle.data import load_graph

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
def test_the_graph_is_read_where_people_have_it(tmp_path, zipped, below):
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
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_a_damaged_file_is_named(tmp_path, name, content):
    write(tmp_path, **{name: content})
    with pytest.raises(ValueError, match=f"(?s){name}.csv.gz: .*how to get it"):
        load_graph("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("raw/edge", "0,4\n", r"outside 0\.\.3"),
        ("raw/node-label", "0\n1\n2\n40\n", r"outside 0\.\.39"),
        ("raw/node-label", "0\n1\n2\n", "3 classes for 4 nodes"),
        ("split/time/valid", "-1\n", r"outside 0\.\.3"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, name, content, problem):
    write(tmp_path, **{name: content})
    with pytest.raises(ValueError, match=f"(?s){name}.*{problem}.*how to get it"):
        load_graph("ogbn-arxiv", tmp_path)
