"""scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from bitcycle.extras import require
from bitcycle_lab.data.base import ImageSplits, Place, dataset
from bitcycle_lab.data.counter import Purpose, permutation
from bitcycle_lab.data.images import make_splits

NUM_TEST = 360
MAX_VALUE = 16.0


@dataset(
    name="digits",
    kind="image",
    description="1,797 8x8 handwritten digits that come inside scikit-learn (UCI, Alpaydin and "
    "Kaynak 1998): 1,437 for training, a fixed 360 for the test",
    num_classes=10,
    input_shape=(1, 8, 8),
    layout="nothing on disk: the images are inside the scikit-learn package",
    source='pip install ".[train]" in a checkout',
    needs_root=False,
)
def load_digits(place: Place) -> ImageSplits:
    """Load the digits; the split is fixed."""
    sklearn_datasets = require("sklearn.datasets", extra="train", purpose="the digits")
    pixels, targets = _read_digits(sklearn_datasets)
    order = torch.from_numpy(permutation(len(pixels), seed=0, purpose=Purpose.SPLIT))
    test, train = order[:NUM_TEST].sort().values, order[NUM_TEST:].sort().values
    return make_splits(
        (pixels[train], targets[train]),
        (pixels[test], targets[test]),
        num_classes=place.info.num_classes,
        max_value=MAX_VALUE,
    )


@functools.cache
def _read_digits(sklearn_datasets: ModuleType) -> tuple[Tensor, Tensor]:
    """Pixels (N, 1, 8, 8) from 0 to 16, and targets; scikit-learn parses their text each time."""
    bunch = sklearn_datasets.load_digits()
    pixels = torch.from_numpy(bunch.images.astype(np.uint8)).unsqueeze(1)
    return pixels, torch.from_numpy(bunch.target.astype(np.int64))
