"""SNLI, XNLI and files of one's own: labelled pairs of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitcycle.data.base import Place, dataset
from bitcycle.data.pair_files import Row, read_rows
from bitcycle.data.splits import PairSplits, SentencePairs

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
