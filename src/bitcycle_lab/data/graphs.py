"""Citation graphs: Cora, CiteSeer and PubMed in Planetoid's files, ogbn-arxiv in OGB's."""

from __future__ import annotations

import io
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bitcycle_lab.data.archive import as_array, open_unpacked, read_pickle
from bitcycle_lab.data.base import Graph, Place, dataset

SPLITS = ("train", "valid", "test")
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
PLANETOID_FOLDERS = ("Planetoid", "planetoid")  # may contain the folders of the three graphs
NUM_VALIDATION = 500


def load_planetoid(place: Place, folder_name: str) -> Graph:
    """Load a graph with its standard split: training, 500 validation and test nodes.

    Features are not normalized; see `Graph.with_row_normalized_features`. Test nodes that
    CiteSeer's files leave out have zero features and are in no mask.
    """
    name = place.info.name
    own = (f"{folder_name}/raw", folder_name, f"{name}/raw", name)
    shared = tuple(f"{above}/{folder}" for above in PLANETOID_FOLDERS for folder in own[:2])
    folder = place.folder([f"ind.{name}.{part}" for part in PARTS], below=(*own, "raw", *shared))
    files = {part: place.file(folder, f"ind.{name}.{part}") for part in PARTS}
    matrices = {
        part: _matrix(place, files[part]) for part in ("x", "tx", "allx", "y", "ty", "ally")
    }
    for part, labels in (("x", "y"), ("tx", "ty"), ("allx", "ally")):
        num_rows, num_labels = len(matrices[part]), len(matrices[labels])
        if num_rows != num_labels:
            raise place.damaged(files[labels], f"{num_labels} rows where {part} has {num_rows}")
    for part in ("tx", "allx", "ty", "ally"):
        columns = matrices["x" if part.endswith("x") else "y"].shape[1]
        if matrices[part].shape[1] != columns:
            raise place.damaged(files[part], f"{matrices[part].shape[1]} columns, not {columns}")

    num_train, num_known = len(matrices["y"]), len(matrices["allx"])
    test = _test_index(place, files["test.index"])
    if len(test) != len(matrices["tx"]) or test.min() != num_known:
        raise place.damaged(
            files["test.index"],
            f"{len(test)} node numbers from {test.min()}; "
            f"expected {len(matrices['tx'])} from {num_known}",
        )
    num_nodes = int(test.max()) + 1
    if num_nodes > num_known + 2 * len(test):  # CiteSeer leaves out 15 of 1,015
        raise place.damaged(
            files["test.index"], f"a node number {num_nodes - 1} for {len(test)} nodes to test"
        )
    features = np.zeros((num_nodes, matrices["x"].shape[1]), np.float32)
    one_hot = np.zeros((num_nodes, matrices["y"].shape[1]), np.float32)
    for whole, known, tested in ((features, "allx", "tx"), (one_hot, "ally", "ty")):
        whole[:num_known] = matrices[known]
        whole[test] = matrices[tested]

    nodes = np.arange(num_nodes)
    num_before_test = min(num_train + NUM_VALIDATION, num_known)
    return Graph(
        features=torch.from_numpy(features),
        edge_index=torch.from_numpy(_edges(place, files["graph"], num_nodes)),
        targets=torch.from_numpy(one_hot.argmax(axis=1).astype(np.int64)),
        train_mask=torch.from_numpy(nodes < num_train),
        validation_mask=torch.from_numpy((nodes >= num_train) & (nodes < num_before_test)),
        test_mask=torch.from_numpy(np.isin(nodes, test)),
        num_classes=one_hot.shape[1],
    )


def _matrix(place: Place, path: Path) -> NDArray[Any]:
    try:
        matrix = as_array(read_pickle(path))
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"an array of shape {matrix.shape} where a matrix is expected")
        if not np.isfinite(matrix).all():
            raise ValueError("a number that is not finite")
    except ValueError as error:
        raise place.damaged(path, str(error)) from None
    return matrix


def _test_index(place: Place, path: Path) -> NDArray[np.int64]:
    try:
        index = np.array([int(line) for line in path.read_text().split()], np.int64)
        if len(index) == 0 or len(np.unique(index)) != len(index):
            raise ValueError("no node numbers, or one twice")
    except (ValueError, OverflowError) as error:
        raise place.damaged(path, f"expected one node number per line ({error})") from None
    return index


def _edges(place: Place, path: Path, num_nodes: int) -> NDArray[np.int64]:
    try:
        neighbours = read_pickle(path)
        if not isinstance(neighbours, dict) or not neighbours:
            raise ValueError("expected a dict from a node to the list of its neighbours")
        if not all(isinstance(nodes, list) for nodes in neighbours.values()):
            raise ValueError("a node whose neighbours are not a list")
        lengths = [len(nodes) for nodes in neighbours.values()]
        if sum(lengths) > path.stat().st_size:  # a pickle that repeats one list
            raise ValueError(f"{sum(lengths):,} neighbours in {path.stat().st_size:,} bytes")
        sources = np.repeat(_numbers(list(neighbours)), lengths)
        targets = _numbers([node for nodes in neighbours.values() for node in nodes])
        if min(sources.min(), targets.min()) < 0 or max(sources.max(), targets.max()) >= num_nodes:
            raise ValueError(f"a node number outside 0..{num_nodes - 1}")
    except (ValueError, TypeError, OverflowError) as error:
        raise place.damaged(path, str(error)) from None
    return both_directions(sources, targets, num_nodes)


def _numbers(nodes: list[Any]) -> NDArray[np.int64]:
    if not all(isinstance(node, int) for node in nodes):  # numpy would look into lists of lists
        raise ValueError("a node that is not an integer")
    return np.array(nodes, np.int64)


for _name, _folder, _nodes, _features, _classes in (
    ("cora", "Cora", "2,708", 1_433, 7),
    ("citeseer", "CiteSeer", "3,327", 3_703, 6),
    ("pubmed", "PubMed", "19,717", 500, 3),
):
    dataset(
        name=_name,
        kind="graph",
        description=f"{_folder}, {_nodes} papers and their citations (Yang et al. 2016)",
        num_classes=_classes,
        input_shape=(_features,),
        layout=f"ind.{_name}.{{x,tx,allx,y,ty,ally,graph,test.index}}, "
        f"in the root, {_folder}/ or {_folder}/raw/, or those in Planetoid/",
        source="https://github.com/kimiyoung/planetoid (data/), or "
        f"torch_geometric.datasets.Planetoid(root, {_folder!r})",
    )(partial(load_planetoid, folder_name=_folder))


@dataset(
    name="ogbn-arxiv",
    kind="graph",
    description="169,343 arXiv papers and their citations, split by year (Hu et al. 2020); "
    "citations taken in both directions",
    num_classes=40,
    input_shape=(128,),
    layout="raw/{edge,node-feat,node-label}.csv.gz and split/time/{train,valid,test}.csv.gz, "
    "in the root or ogbn_arxiv/; also unzipped (.csv)",
    source="https://ogb.stanford.edu (Node Property Prediction, arxiv.zip), or "
    'ogb.nodeproppred.NodePropPredDataset("ogbn-arxiv", root)',
)
def load_arxiv(place: Place) -> Graph:
    """Load the graph; features are not normalized, see `Graph.with_standardized_features`."""
    folder = place.folder(
        ["raw/edge.csv.gz", "raw/edge.csv"], below=("ogbn_arxiv", "ogbn-arxiv", "arxiv")
    )

    def read(name: str, dtype: type[np.generic], num_columns: int) -> NDArray[Any]:
        path = place.file(folder, f"{name}.csv.gz", f"{name}.csv")
        try:
            return read_csv(path, dtype, num_columns)
        except ValueError as error:
            raise place.damaged(path, str(error)) from None

    features = read("raw/node-feat", np.float32, place.info.input_shape[0])
    num_nodes = len(features)
    targets = read("raw/node-label", np.int64, 1)[:, 0]
    edges = read("raw/edge", np.int64, 2)
    splits = [read(f"split/time/{split}", np.int64, 1)[:, 0] for split in SPLITS]
    for name, numbers, limit in (
        ("raw/edge", edges, num_nodes),
        ("raw/node-label", targets, place.info.num_classes),
        *((f"split/time/{s}", split, num_nodes) for s, split in zip(SPLITS, splits, strict=True)),
    ):
        if numbers.min() < 0 or numbers.max() >= limit:
            raise place.damaged(folder / f"{name}.csv*", f"a number outside 0..{limit - 1}")
    if len(targets) != num_nodes:
        raise place.damaged(
            folder / "raw/node-label.csv*", f"{len(targets)} classes for {num_nodes} nodes"
        )
    train, validation, test = (_mask(split, num_nodes) for split in splits)
    return Graph(
        features=torch.from_numpy(features),
        edge_index=torch.from_numpy(both_directions(edges[:, 0], edges[:, 1], num_nodes)),
        targets=torch.from_numpy(targets),
        train_mask=train,
        validation_mask=validation,
        test_mask=test,
        num_classes=place.info.num_classes,
    )


def read_csv(path: Path, dtype: type[np.generic], num_columns: int) -> NDArray[Any]:
    """Read a table of numbers, plain or gzipped; ValueError if the file holds anything else."""
    try:
        with open_unpacked(path) as content, io.TextIOWrapper(content, encoding="ascii") as file:
            table = np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2)
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"not a table of numbers ({type(error).__name__}: {error})") from None
    if len(table) == 0 or table.shape[1] != num_columns:
        raise ValueError(f"a table of {table.shape}, expected {num_columns} columns")
    if not np.isfinite(table).all():
        raise ValueError("a number that is not finite")
    return table


def _mask(nodes: NDArray[np.int64], num_nodes: int) -> torch.Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes)] = True
    return mask


def both_directions(
    sources: NDArray[np.int64], targets: NDArray[np.int64], num_nodes: int
) -> NDArray[np.int64]:
    """Each edge in both directions, sorted, without duplicates and self-loops: (2, num_edges).

    >>> both_directions(np.array([0, 1, 2, 0]), np.array([1, 0, 2, 2]), 3).tolist()
    [[0, 0, 1, 2], [1, 2, 0, 0]]
    """
    keep = sources != targets
    sources, targets = sources[keep], targets[keep]
    pairs = np.concatenate([sources * num_nodes + targets, targets * num_nodes + sources])
    unique = np.unique(pairs)
    return np.stack([unique // num_nodes, unique % num_nodes])
