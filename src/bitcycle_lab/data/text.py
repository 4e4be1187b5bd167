"""Text for language models: Penn Treebank and WikiText as word indices, cut into batches.

`read_corpus` reads the files with the vocabulary of the training text, which is cached. `Streams`
and `StreamPass` cut a text into columns for truncated backpropagation through time (LSTM),
`Blocks` into independent sequences (transformer).
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.files import write_text
from bitcycle_lab.data.base import END_OF_LINE, UNKNOWN, Corpus, Place, dataset
from bitcycle_lab.data.batches import (
    IGNORE,
    Batch,
    Key,
    StepBatches,
    check_position,
    slice_bounds,
    upload,
)

SPLITS = ("train", "valid", "test")


def build_vocabulary(path: Path) -> tuple[str, ...]:
    """The words of a text file, most frequent first (ties alphabetically), with `<eos>` per line.

    `<unk>` is added if the text does not contain it, for unknown words of the other splits.
    """
    counts: Counter[str] = Counter()
    num_lines = 0
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            counts.update(line.split())
            num_lines += 1
    counts[END_OF_LINE] += num_lines
    counts.setdefault(UNKNOWN, 0)
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def cached_vocabulary(path: Path, cache_dir: Path | None = None) -> tuple[str, ...]:
    """`build_vocabulary`, cached by the SHA-256 of the file.

    A damaged cache is rebuilt; one that cannot be written is skipped. The cache folder is
    `cache_dir`, or bitcycle's in the user's cache folder.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = cache_dir or default_cache_dir()
    cache = folder / f"vocabulary-{digest[:32]}.json"
    known = _read_cache(cache, digest)
    if known is not None:
        return known
    words = build_vocabulary(path)
    with suppress(OSError):  # without a cache, loading takes longer
        folder.mkdir(parents=True, exist_ok=True)
        write_text(cache, json.dumps({"sha256": digest, "words": words}))
    return words


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/bitcycle`, usually `~/.cache/bitcycle`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "bitcycle"


def _read_cache(cache: Path, digest: str) -> tuple[str, ...] | None:
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
        words = content["words"]
        is_sound = (
            content["sha256"] == digest
            and all(isinstance(word, str) for word in words)
            and len(set(words)) == len(words)
            and {END_OF_LINE, UNKNOWN} <= set(words)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(words) if is_sound else None


def encode(path: Path, vocabulary: tuple[str, ...]) -> Tensor:
    """The words of a file as indices, `<eos>` after each line, unknown words as `<unk>`."""
    numbers = {word: number for number, word in enumerate(vocabulary)}
    end, unknown = numbers[END_OF_LINE], numbers[UNKNOWN]
    encoded = array("i")
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            encoded.extend([numbers.get(word, unknown) for word in line.split()])
            encoded.append(end)
    return torch.from_numpy(np.array(encoded, np.int32))


def read_corpus(place: Place, file_name: str, below: tuple[str, ...]) -> Corpus:
    """Load three splits with the vocabulary of the training text; {} in the name is the split."""
    folder = place.folder([file_name.format("train")], below=below)
    paths = [place.file(folder, file_name.format(split)) for split in SPLITS]
    for path in paths:
        if path.stat().st_size == 0:
            raise place.damaged(path, "the file is empty")
    path = paths[0]
    try:
        vocabulary = cached_vocabulary(path, place.cache_dir)
        splits = []
        for path in paths:
            splits.append(encode(path, vocabulary))
    except UnicodeDecodeError as error:
        raise place.damaged(path, f"not UTF-8 text (byte {error.start} of a line)") from None
    for path, tokens in zip(paths, splits, strict=True):
        if len(tokens) < 2 or bool((tokens == tokens[0]).all()):
            raise place.damaged(path, "there are no words in it")
    train, validation, test = splits
    return Corpus(train=train, validation=validation, test=test, vocabulary=vocabulary)


dataset(
    name="ptb",
    kind="language",
    description="Penn Treebank, 929,589 training words (Mikolov's version)",
    num_classes=10_000,
    input_shape=(),
    layout="ptb.{train,valid,test}.txt, in the root, ptb/ or simple-examples/data/",
    source="Tomas Mikolov's simple-examples.tgz (RNNLM toolkit page)",
)(
    partial(
        read_corpus,
        file_name="ptb.{}.txt",
        below=("ptb", "PTB", "penn", "simple-examples/data", "data"),
    )
)

for _name, _num_words, _size in (
    ("wikitext-2", 33_278, "2.1 million"),
    ("wikitext-103", 267_735, "103 million"),
):
    dataset(
        name=_name,
        kind="language",
        description=f"{_size} words of Wikipedia articles (Merity et al. 2016)",
        num_classes=_num_words,
        input_shape=(),
        layout=f"wiki.{{train,valid,test}}.tokens, in the root or {_name}/",
        source=f"the WikiText page of Stephen Merity ({_name}-v1.zip, the word-level version), "
        "unpacked below the root",
    )(partial(read_corpus, file_name="wiki.{}.tokens", below=(_name,)))


class Streams(StepBatches):
    """Training batches (bptt, columns) of a text in `batch_size` parallel columns.

    Words at the end that do not fill a row are left out; the last batch of an epoch may be shorter.
    Ranks and micro-batches divide the columns. The recurrent state goes from a batch to the next
    one of the same micro-batch, and is reset at `starts_stream`: at the start of every epoch.
    """

    def __init__(
        self,
        tokens: Tensor,
        *,
        batch_size: int,
        bptt: int,
        rank: int = 0,
        world_size: int = 1,
        num_micro: int = 1,
    ) -> None:
        super().__init__(
            batch_size=batch_size, rank=rank, world_size=world_size, num_micro=num_micro
        )
        _check_bptt(bptt)
        num_rows = (len(tokens) - 1) // batch_size
        if num_rows < 1:
            raise ValueError(f"{len(tokens)} words are too few for {batch_size} streams")
        used = num_rows * batch_size
        self.bptt = bptt
        self._inputs = tokens[:used].view(batch_size, num_rows).t()  # (rows, columns)
        self._targets = tokens[1 : used + 1].view(batch_size, num_rows).t()
        self.steps_per_epoch = -(-num_rows // bptt)

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """This rank's columns of micro-batch `micro` of a step (0-based)."""
        start, stop = self.slice_of(self.batch_size, step, micro)
        epoch, position = divmod(step, self.steps_per_epoch)
        rows = slice(position * self.bptt, (position + 1) * self.bptt)
        return Batch(
            inputs=self._inputs[rows, start:stop].long().contiguous(),
            targets=self._targets[rows, start:stop].long().contiguous(),
            step=step,
            epoch=epoch,
            micro=micro,
            share=(stop - start) / self.batch_size,
            starts_stream=position == 0,
        )


class StreamPass:
    """Predict every word but the first exactly once, for evaluation; can be iterated again.

    Columns are padded with the target IGNORE. Ranks divide the columns; a rank without a column
    has no batches.
    """

    def __init__(
        self, tokens: Tensor, *, batch_size: int, bptt: int, rank: int = 0, world_size: int = 1
    ) -> None:
        check_position(rank=rank, world_size=world_size, batch_size=max(batch_size, world_size))
        _check_bptt(bptt)
        num_targets = len(tokens) - 1
        if batch_size < 1 or num_targets < 1:
            raise ValueError(f"no stream to make: {len(tokens)} words, batch_size {batch_size}")
        num_rows = -(-num_targets // batch_size)
        inputs = tokens.new_zeros(num_rows * batch_size)
        targets = torch.full_like(inputs, IGNORE)
        inputs[:num_targets], targets[:num_targets] = tokens[:-1], tokens[1:]
        start, stop = slice_bounds(batch_size, world_size, rank)
        self.bptt = bptt
        self._num_targets = num_targets
        self._inputs = inputs.view(batch_size, num_rows)[start:stop].t()  # (rows, columns)
        self._targets = targets.view(batch_size, num_rows)[start:stop].t()

    def __len__(self) -> int:
        num_rows, num_columns = self._inputs.shape
        return -(-num_rows // self.bptt) if num_columns else 0

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            rows = slice(step * self.bptt, (step + 1) * self.bptt)
            targets = self._targets[rows].long().contiguous()
            yield Batch(
                inputs=self._inputs[rows].long().contiguous(),
                targets=targets,
                step=step,
                share=int((targets != IGNORE).sum()) / self._num_targets,
                starts_stream=step == 0,
            )


def _check_bptt(bptt: int) -> None:
    if bptt < 1:
        raise ValueError(f"bptt ({bptt}) must be at least 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Samples for `Batches` and `OnePass`: block i is the words i * length ... (i + 1) * length.

    Its targets are the words that follow; both are (batch, length). In training the last, short
    block is left out. With `keep_last` it is padded with the target IGNORE, so that an evaluation
    predicts every word but the first exactly once.
    """

    tokens: Tensor
    length: int
    keep_last: bool = False

    num_prefetch = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length ({self.length}) must be at least 1")
        if len(self) == 0:
            raise ValueError(f"{len(self.tokens)} words make no block of {self.length}")

    def __len__(self) -> int:
        num_targets = len(self.tokens) - 1
        return -(-num_targets // self.length) if self.keep_last else num_targets // self.length

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these blocks, without augmentation."""
        device = self.tokens.device
        starts = upload(torch.from_numpy(np.ascontiguousarray(indices)), device).view(-1, 1)
        positions = starts * self.length + torch.arange(self.length, device=device)
        num_targets = len(self.tokens) - 1
        is_padding = positions >= num_targets
        positions = positions.clamp(max=num_targets - 1)
        targets = self.tokens[positions + 1].masked_fill(is_padding, IGNORE)
        return self.tokens[positions].long(), targets.long()

    def to(self, device: torch.device | str) -> Blocks:
        """The same blocks on `device`."""
        return replace(self, tokens=self.tokens.to(device))
