"""Labelled sentence pairs: SNLI, XNLI and TSV files of your own, and their tokenizer.

`load_files` reads TSV files into `SentencePairs`; `train_tokenizer` makes a byte-level BPE
tokenizer from them; `EncodedPairs` are the tokenized samples for `Batches` and `OnePass`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.extras import require
from bitcycle_lab.data.base import PairSplits, Place, SentencePairs, dataset
from bitcycle_lab.data.batches import Key, upload

COLUMNS = {
    "premise": ("premise", "sentence1"),
    "hypothesis": ("hypothesis", "hypo", "sentence2"),
    "label": ("label", "gold_label"),
}
LANGUAGE = "language"
NO_LABEL = "-"  # SNLI and MultiNLI: the annotators disagreed
INFERENCE = ("entailment", "neutral", "contradiction")
SPELLINGS = {"contradictory": "contradiction"}  # in MultiNLI as translated for XNLI
VALIDATION = ("validation.tsv", "dev.tsv", "valid.tsv")
SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
MIN_VOCAB = 256 + len(SPECIAL)  # every byte has a token
_PURPOSE = "tokenizers"


class LabelledPair(NamedTuple):
    """One line of a file; language is "" if the file has no such column."""

    line: int
    premise: str
    hypothesis: str
    label: str
    language: str


@dataset(
    name="pairs",
    kind="pair",
    description="Labelled pairs of sentences of your own, any labels",
    num_classes=2,  # a placeholder: the labels are those of the training file
    input_shape=(),
    layout="train.tsv, test.tsv and, if there is one, validation.tsv, in the root; the first line "
    "names the columns premise, hypothesis, label (and language), with tabs between",
    source="your own files in this layout",
)
def load_own(place: Place) -> PairSplits:
    """Load TSV files with any labels."""
    folder = place.folder(["train.tsv"], below=())
    return _load_tsv(place, folder, labels=None)


@dataset(
    name="snli",
    kind="pair",
    description="Stanford Natural Language Inference (Bowman et al. 2015), 3 labels",
    num_classes=3,
    input_shape=(),
    layout="snli_1.0_{train,dev,test}.txt as released, in the root or snli_1.0/; or train.tsv, "
    "test.tsv (and validation.tsv) with columns label, premise, hypothesis, in the root or snli/",
    source="snli_1.0.zip of the Stanford NLP group",
)
def load_snli(place: Place) -> PairSplits:
    """Load the released files, or TSV files of some of its pairs."""
    released = "snli_1.0_{}.txt"
    folder = place.folder([released.format("train"), "train.tsv"], below=("snli_1.0", "snli"))
    if (folder / released.format("train")).is_file():
        train, validation, test = (
            place.file(folder, released.format(split)) for split in ("train", "dev", "test")
        )
        return load_files(place, train=train, test=test, validation=validation)
    return _load_tsv(place, folder, labels=INFERENCE)


@dataset(
    name="xnli",
    kind="pair",
    description="Trained on English MultiNLI, tested in 15 languages (Conneau et al. 2018)",
    num_classes=3,
    input_shape=(),
    layout="multinli.train.en.tsv, in the root, multinli/ or XNLI-MT-1.0/multinli/, and "
    "xnli.dev.tsv and xnli.test.tsv, in the root or XNLI-1.0/",
    source="XNLI-MT-1.0.zip and XNLI-1.0.zip of the XNLI page (Facebook Research)",
)
def load_xnli(place: Place) -> PairSplits:
    """Load English training pairs, and validation and test pairs in all languages."""
    training = "multinli.train.en.tsv"
    below = ("multinli", "XNLI-MT-1.0/multinli", "XNLI-MT-1.0")
    train = place.folder([training], below=below) / training
    folder = place.folder(["xnli.test.tsv", "xnli.dev.tsv"], below=("XNLI-1.0", "XNLI"))
    test, validation = (place.file(folder, f"xnli.{split}.tsv") for split in ("test", "dev"))
    return load_files(place, train=train, test=test, validation=validation)


def _load_tsv(place: Place, folder: Path, labels: tuple[str, ...] | None) -> PairSplits:
    """Load train.tsv, test.tsv and, if there is one, the validation file."""
    return load_files(
        place,
        train=place.file(folder, "train.tsv"),
        test=place.file(folder, "test.tsv"),
        validation=next((folder / n for n in VALIDATION if (folder / n).is_file()), None),
        labels=labels,
    )


def load_files(
    place: Place,
    *,
    train: Path,
    test: Path,
    validation: Path | None,
    labels: tuple[str, ...] | None = INFERENCE,
) -> PairSplits:
    """Read the files of a dataset; without `labels`, the sorted labels of the training file."""
    paths = {"train": train, "test": test, "validation": validation}
    read = {name: list(read_pairs(place, path)) for name, path in paths.items() if path is not None}
    for name, found in read.items():
        if not found:
            raise place.damaged(paths[name] or train, "none of its pairs has a label")
    if labels is None:
        labels = tuple(sorted({pair.label for pair in read["train"]}))
        if len(labels) < 2:
            raise place.damaged(train, f"its only label is {labels[0]!r}; a task needs two or more")
    names = {pair.language for found in read.values() for pair in found}
    languages = ("", *sorted(names - {""}))
    label_ids = {label: number for number, label in enumerate(labels)}
    language_ids = {language: number for number, language in enumerate(languages)}
    splits = {
        name: _index_pairs(place, paths[name] or train, found, label_ids, language_ids)
        for name, found in read.items()
    }
    return PairSplits(
        train=splits["train"],
        test=splits["test"],
        validation=splits.get("validation"),
        labels=labels,
        languages=languages,
    )


def _index_pairs(
    place: Place,
    path: Path,
    pairs: list[LabelledPair],
    labels: Mapping[str, int],
    languages: Mapping[str, int],
) -> SentencePairs:
    numbers = []
    for pair in pairs:
        number = labels.get(pair.label, labels.get(SPELLINGS.get(pair.label, "")))
        if number is None:
            known = ", ".join(labels)
            raise place.damaged(path, f"line {pair.line}: label {pair.label!r} is none of {known}")
        numbers.append(number)
    return SentencePairs(
        premises=tuple(pair.premise for pair in pairs),
        hypotheses=tuple(pair.hypothesis for pair in pairs),
        labels=np.array(numbers, np.int64),
        languages=np.array([languages[pair.language] for pair in pairs], np.int64),
    )


def read_pairs(place: Place, path: Path) -> Iterator[LabelledPair]:
    """Yield the labelled pairs of a TSV file."""
    lines = _decoded_lines(place, path)
    first = next(lines, None)
    if first is None:
        raise place.damaged(path, "the file is empty")
    names = first[1].split("\t")
    wanted = {role: _find(place, path, names, role) for role in COLUMNS}
    language = names.index(LANGUAGE) if LANGUAGE in names else None
    columns = [*wanted.values()] + ([] if language is None else [language])
    num_needed, num_named = max(columns) + 1, len(names)
    is_empty = True
    for number, text in lines:
        cells = text.split("\t")
        if not num_needed <= len(cells) <= num_named:
            raise place.damaged(
                path, f"line {number} has {len(cells)} tab-separated cells, line 1 {num_named}"
            )
        is_empty = False
        label = cells[wanted["label"]].strip()
        if label == NO_LABEL:
            continue
        yield LabelledPair(
            line=number,
            premise=cells[wanted["premise"]],
            hypothesis=cells[wanted["hypothesis"]],
            label=label,
            language="" if language is None else cells[language].strip(),
        )
    if is_empty:
        raise place.damaged(path, "there is no line after the names of the columns")


def _decoded_lines(place: Place, path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1; only a newline ends a line, not Unicode separators."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"line {number} is not UTF-8 text (byte {error.start} of the line)"
                raise place.damaged(path, problem) from None
            yield number, text.rstrip("\r\n")


def _find(place: Place, path: Path, names: list[str], role: str) -> int:
    for name in COLUMNS[role]:
        if name in names:
            return names.index(name)
    raise place.damaged(
        path,
        f"line 1 names no column for the {role} ({' or '.join(COLUMNS[role])}): "
        f"{_shortened(names)}",
    )


def _shortened(names: list[str], most: int = 120) -> str:
    text = ", ".join(names)
    return text if len(text) <= most else f"{text[:most]}..."


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> str:
    """Train a lower-case byte-level BPE tokenizer; returns its JSON.

    It encodes a pair as [CLS] premise [SEP] hypothesis [SEP] and has at most `vocab_size` tokens,
    fewer if the text has fewer pairs to merge.
    """
    if vocab_size < MIN_VOCAB:
        raise ValueError(f"vocab_size ({vocab_size}) must be at least {MIN_VOCAB}: bytes and marks")
    package = require("tokenizers", extra="transformers", purpose=_PURPOSE)
    tokenizer = package.Tokenizer(package.models.BPE())
    normal = package.normalizers
    tokenizer.normalizer = normal.Sequence([normal.NFKC(), normal.Lowercase()])
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, SPECIAL.index(mark)) for mark in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_padding(pad_id=0, pad_token=SPECIAL[0])
    text: str = tokenizer.to_str()
    return text


def read_tokenizer(text: str, *, length: int, source: str | Path = "tokenizer") -> Any:
    """A tokenizer from its JSON that truncates and pads every pair to `length` tokens.

    The JSON must have a `padding` section, which names the padding token.
    """
    package = require("tokenizers", extra="transformers", purpose=_PURPOSE)
    try:
        tokenizer = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain Exception
        raise ValueError(f"{source} is not the JSON of a tokenizer: {error}") from None
    if tokenizer.padding is None:
        raise ValueError(f"{source} names no token to pad with (its `padding` is null)")
    padding = {k: tokenizer.padding[k] for k in ("pad_id", "pad_token", "pad_type_id", "direction")}
    tokenizer.enable_padding(**padding, length=length)
    tokenizer.enable_truncation(length, strategy="longest_first")
    return tokenizer


class PairEncoder:
    """Encode pairs as int64 (N, 3, length): token ids, attention mask, token type ids.

    `make` returns the tokenizer's JSON and is called at the first use, unless `text` is set before.
    """

    def __init__(self, make: Callable[[], str], *, length: int) -> None:
        self._make = make
        self.length = length

    @cached_property
    def text(self) -> str:
        """The tokenizer as JSON."""
        return self._make()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return read_tokenizer(self.text, length=self.length)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        size: int = self.tokenizer.get_vocab_size()
        return size

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        encoded = self.tokenizer.encode_batch(list(pairs))
        rows = [(each.ids, each.attention_mask, each.type_ids) for each in encoded]
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), 3, self.length)


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Tokenized pairs as samples; a target is label + num_labels * language.

    `split_targets` separates them.
    """

    pairs: SentencePairs
    encoder: PairEncoder
    num_labels: int
    device: torch.device | str = "cpu"

    num_prefetch = 0  # a fetch takes milliseconds; the tokenizer has its own threads

    def __len__(self) -> int:
        return len(self.pairs)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these pairs, without augmentation."""
        pairs = self.pairs
        inputs = self.encoder([(pairs.premises[i], pairs.hypotheses[i]) for i in indices])
        targets = pairs.labels[indices] + self.num_labels * pairs.languages[indices]
        return upload(inputs, self.device), upload(torch.from_numpy(targets), self.device)

    def to(self, device: torch.device | str) -> EncodedPairs:
        """The same pairs, fetched onto `device`."""
        return replace(self, device=device)


def split_targets(targets: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Labels and languages of targets.

    >>> split_targets(torch.tensor([2, 3, 7]), 3)
    (tensor([2, 0, 1]), tensor([0, 1, 2]))
    """
    return targets % num_labels, targets // num_labels
