"""SNLI, XNLI and files of one's own: labelled pairs of sentences."""

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

from bitcycle.data.base import PairSplits, Place, SentencePairs, dataset
from bitcycle.data.batches import Key
from bitcycle.extras import require

COLUMNS = {
    "premise": ("premise", "sentence1"),
    "hypothesis": ("hypothesis", "hypo", "sentence2"),
    "label": ("label", "gold_label"),
}
LANGUAGE = "language"
NO_LABEL = "-"  # SNLI and MultiNLI: the annotators did not agree


class Row(NamedTuple):
    """One pair and the line of the file it stands on; language is "" where the file names none."""

    line: int
    premise: str
    hypothesis: str
    label: str
    language: str


def read_rows(place: Place, path: Path) -> Iterator[Row]:
    """Every pair of a file that has a label."""
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
            raise place.damaged(path, _wrong_number(number, len(cells), names))
        is_empty = False
        label = cells[wanted["label"]].strip()
        if label == NO_LABEL:
            continue
        yield Row(
            line=number,
            premise=cells[wanted["premise"]],
            hypothesis=cells[wanted["hypothesis"]],
            label=label,
            language="" if language is None else cells[language].strip(),
        )
    if is_empty:
        raise place.damaged(path, "there is no line after the names of the columns")


def _decoded_lines(place: Place, path: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1; only a newline ends a line, other separators of Unicode are text."""
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
        f"line 1 names no column for the {role} ({' or '.join(COLUMNS[role])}); it is "
        f"{_shortened(names)}. The first line must name the columns, with a tab between, such as "
        "premise, hypothesis, label",
    )


def _wrong_number(line: int, number: int, names: list[str]) -> str:
    return (
        f"line {line} has {number} tab-separated column{'s' * (number != 1)}, line 1 names "
        f"{len(names)}: {_shortened(names)}"
    )


def _shortened(names: list[str], most: int = 120) -> str:
    text = ", ".join(names)
    return text if len(text) <= most else f"{text[:most]}..."


SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
SMALLEST = 256 + len(SPECIAL)  # every byte has a token
_PURPOSE = "tokenizers"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> str:
    """The JSON of a tokenizer: lower case, [CLS] premise [SEP] hypothesis [SEP].

    It has at most `vocab_size` tokens, fewer when the text has fewer pairs to merge.
    """
    if vocab_size < SMALLEST:
        raise ValueError(f"vocab_size ({vocab_size}) must be at least {SMALLEST}: bytes and marks")
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
    """A tokenizer from its JSON that cuts and pads every pair to `length` tokens.

    Padded with the token the JSON names for it, so it must have a `padding` section.
    """
    package = require("tokenizers", extra="transformers", purpose=_PURPOSE)
    try:
        tokenizer = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more special
        raise ValueError(f"{source} is not the JSON of a tokenizer: {error}") from None
    if tokenizer.padding is None:
        raise ValueError(f"{source} names no token to pad with (its `padding` is null)")
    padding = {k: tokenizer.padding[k] for k in ("pad_id", "pad_token", "pad_type_id", "direction")}
    tokenizer.enable_padding(**padding, length=length)
    tokenizer.enable_truncation(length, strategy="longest_first")
    return tokenizer


class PairEncoder:
    """Pairs -> int64 (N, 3, length): tokens, mask (1: a token, 0: padding), which sentence.

    The tokenizer's JSON is made when it is first needed; set `text` before that to bring one.
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
        """The tokenizer itself."""
        return read_tokenizer(self.text, length=self.length)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        size: int = self.tokenizer.get_vocab_size()
        return size

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        encoded = self.tokenizer.encode_batch(list(pairs))
        rows = [(each.ids, each.attention_mask, each.type_ids) for each in encoded]
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), 3, self.length)


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Samples of a task; a target is label + num_labels * language.

    One number for both, so that a target is a number as everywhere; `split_targets` undoes it.
    """

    pairs: SentencePairs
    encoder: PairEncoder
    num_labels: int
    device: torch.device | str = "cpu"

    num_prefetch = 0  # some milliseconds, on threads of the tokenizer's own

    def __len__(self) -> int:
        return len(self.pairs)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Those pairs, in that order; there is no augmentation."""
        pairs = self.pairs
        inputs = self.encoder([(pairs.premises[i], pairs.hypotheses[i]) for i in indices])
        targets = pairs.labels[indices] + self.num_labels * pairs.languages[indices]
        return inputs.to(self.device), torch.from_numpy(targets).to(self.device)

    def to(self, device: torch.device | str) -> EncodedPairs:
        """The same pairs, fetched onto `device`."""
        return replace(self, device=device)


def split_targets(targets: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Labels and languages.

    >>> split_targets(torch.tensor([2, 3, 7]), 3)
    (tensor([2, 0, 1]), tensor([0, 1, 2]))
    """
    return targets % num_labels, targets // num_labels


INFERENCE = ("entailment", "neutral", "contradiction")
SPELLINGS = {"contradictory": "contradiction"}  # in MultiNLI as translated for XNLI
VALIDATION = ("validation.tsv", "dev.tsv", "valid.tsv")


def load_files(
    place: Place,
    *,
    train: Path,
    test: Path,
    validation: Path | None,
    labels: tuple[str, ...] | None = INFERENCE,
) -> PairSplits:
    """Read the files; without `labels` they are those of the training file, in sorted order."""
    paths = {"train": train, "test": test, "validation": validation}
    rows = {name: list(read_rows(place, path)) for name, path in paths.items() if path is not None}
    for name, found in rows.items():
        if not found:
            raise place.damaged(paths[name] or train, "none of its pairs has a label")
    if labels is None:
        labels = tuple(sorted({row.label for row in rows["train"]}))
        if len(labels) < 2:
            raise place.damaged(train, f"its only label is {labels[0]!r}; a task needs two or more")
    names = {row.language for found in rows.values() for row in found}
    languages = ("", *sorted(names - {""}))
    label_numbers = {label: number for number, label in enumerate(labels)}
    language_numbers = {language: number for number, language in enumerate(languages)}
    splits = {
        name: _numbered(place, paths[name] or train, found, label_numbers, language_numbers)
        for name, found in rows.items()
    }
    return PairSplits(
        train=splits["train"],
        test=splits["test"],
        validation=splits.get("validation"),
        labels=labels,
        languages=languages,
    )


def _numbered(
    place: Place,
    path: Path,
    rows: list[Row],
    labels: Mapping[str, int],
    languages: Mapping[str, int],
) -> SentencePairs:
    numbers = []
    for row in rows:
        number = labels.get(row.label, labels.get(SPELLINGS.get(row.label, "")))
        if number is None:
            known = ", ".join(labels)
            raise place.damaged(path, f"line {row.line}: label {row.label!r} is none of {known}")
        numbers.append(number)
    return SentencePairs(
        premises=tuple(row.premise for row in rows),
        hypotheses=tuple(row.hypothesis for row in rows),
        labels=np.array(numbers, np.int64),
        languages=np.array([languages[row.language] for row in rows], np.int64),
    )


def _optional(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


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
    """Whatever labels the training file has."""
    folder = place.folder(["train.tsv"], below=())
    return load_files(
        place,
        train=place.file(folder, "train.tsv"),
        test=place.file(folder, "test.tsv"),
        validation=_optional(folder, *VALIDATION),
        labels=None,
    )


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
    """The release, or plain files of (some of) its pairs."""
    released = "snli_1.0_{}.txt"
    folder = place.folder([released.format("train"), "train.tsv"], below=("snli_1.0", "snli"))
    if (folder / released.format("train")).is_file():
        train, validation, test = (
            place.file(folder, released.format(split)) for split in ("train", "dev", "test")
        )
        return load_files(place, train=train, test=test, validation=validation)
    return load_files(
        place,
        train=place.file(folder, "train.tsv"),
        test=place.file(folder, "test.tsv"),
        validation=_optional(folder, *VALIDATION),
    )


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
    """Validation and test have every language."""
    training = "multinli.train.en.tsv"
    below = ("multinli", "XNLI-MT-1.0/multinli", "XNLI-MT-1.0")
    train = place.folder([training], below=below) / training
    folder = place.folder(["xnli.test.tsv", "xnli.dev.tsv"], below=("XNLI-1.0", "XNLI"))
    test, validation = (place.file(folder, f"xnli.{split}.tsv") for split in ("test", "dev"))
    return load_files(place, train=train, test=test, validation=validation)
