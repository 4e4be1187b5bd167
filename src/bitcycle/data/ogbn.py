"""OGBN-Arxiv from the CSV files of the Open Graph Benchmark."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bitcycle.data.base import Place, dataset
from bitcycle.data.splits import Graph, both_directions
from bitcycle.data.unpacked import open_unpacked

SPLITS = ("train", "valid", "test")


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
    """Features are as in the files; see `Graph.with_standardized_features`."""
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
    """A table of numbers, plain or gzipped; ValueError when it is anything else."""
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
