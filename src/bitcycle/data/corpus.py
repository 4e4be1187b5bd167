"""Penn Treebank and WikiText: text files to word numbers."""

from __future__ import annotations

from array import array
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bitcycle.data.base import Place, dataset
from bitcycle.data.splits import END_OF_LINE, UNKNOWN, Corpus
from bitcycle.data.vocabulary import cached_vocabulary

SPLITS = ("train", "valid", "test")


def encode(path: Path, vocabulary: tuple[str, ...]) -> Tensor:
    """The words of a file as numbers, `<eos>` after each line, unseen words as `<unk>`."""
    numbers = {word: number for number, word in enumerate(vocabulary)}
    end, unknown = numbers[END_OF_LINE], numbers[UNKNOWN]
    encoded = array("i")
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            encoded.extend([numbers.get(word, unknown) for word in line.split()])
            encoded.append(end)
    return torch.from_numpy(np.array(encoded, np.int32))


def load_corpus(place: Place, file_name: str, below: tuple[str, ...]) -> Corpus:
    """Three splits with the vocabulary of the training text; `file_name` has {} for the split."""
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
        load_corpus,
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
    )(partial(load_corpus, file_name="wiki.{}.tokens", below=(_name,)))
