"""Files to batches: datasets by name, and loaders whose only state is the step.

>>> from bitcycle_lab.data import Batches, OnePass, load_images
>>> splits = load_images("digits")
>>> batches = Batches(splits.train, batch_size=64, seed=0)
>>> batches.steps_per_epoch, batches.batch_at(1000).inputs.shape
(23, torch.Size([64, 1, 8, 8]))
>>> sum(batch.num_targets for batch in OnePass(splits.test, batch_size=100))
360
"""

from bitcycle_lab.data.base import (
    DATASETS,
    Corpus,
    DatasetInfo,
    Graph,
    ImageSplits,
    PairSplits,
    Place,
    SentencePairs,
    dataset,
    load,
    load_corpus,
    load_graph,
    load_images,
    load_pairs,
)
from bitcycle_lab.data.batches import (
    IGNORE,
    Batch,
    Batches,
    Key,
    OnePass,
    Samples,
    Tensors,
    count_selected,
    select,
)
from bitcycle_lab.data.images import ImageArrays
from bitcycle_lab.data.pairs import EncodedPairs, PairEncoder
from bitcycle_lab.data.text import Blocks, StreamPass, Streams

__all__ = [
    "DATASETS",
    "IGNORE",
    "Batch",
    "Batches",
    "Blocks",
    "Corpus",
    "DatasetInfo",
    "EncodedPairs",
    "Graph",
    "ImageArrays",
    "ImageSplits",
    "Key",
    "OnePass",
    "PairEncoder",
    "PairSplits",
    "Place",
    "Samples",
    "SentencePairs",
    "StreamPass",
    "Streams",
    "Tensors",
    "count_selected",
    "dataset",
    "load",
    "load_corpus",
    "load_graph",
    "load_images",
    "load_pairs",
    "select",
]
