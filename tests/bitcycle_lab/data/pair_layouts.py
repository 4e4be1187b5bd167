"""Writes small files of sentence pairs in the layouts of the real ones."""

from __future__ import annotations

import random
from pathlib import Path

LABELS = ("entailment", "neutral", "contradiction")
XNLI_COLUMNS = (
    "language", "gold_label", "sentence1_binary_parse", "sentence2_binary_parse",
    "sentence1_parse", "sentence2_parse", "sentence1", "sentence2", "promptID", "pairID", "genre",
    "label1", "label2", "label3", "label4", "label5", "sentence1_tokenized", "sentence2_tokenized",
    "match",
)  # fmt: skip
SNLI_COLUMNS = (
    "gold_label", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
    "sentence2_parse", "sentence1", "sentence2", "captionID", "pairID", "label1", "label2",
    "label3", "label4", "label5",
)  # fmt: skip
Pair = tuple[str, str, str]


def some_pairs(number: int, *, seed: int = 0) -> list[Pair]:
    """(premise, hypothesis, label) whose label the hypothesis gives away, for quick learning."""
    generator = random.Random(seed)
    nouns, hints = ("dog", "man", "child", "boat"), ("outdoors", "waiting", "sleeping")
    pairs = []
    for i in range(number):
        noun, kind = generator.choice(nouns), i % 3
        pairs.append((f"A {noun} runs by the sea .", f"The {noun} is {hints[kind]}", LABELS[kind]))
    return pairs


def write_lines(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_plain(path: Path, pairs: list[Pair], columns: str = "label premise hypothesis") -> Path:
    """Three columns in any order, under any of their names."""
    order = columns.split()
    place = {"premise": 0, "hypothesis": 1, "hypo": 1, "label": 2}
    lines = ["\t".join(pair[place[name]] for name in order) for pair in pairs]
    return write_lines(path, "\t".join(order), *lines)


def write_released(path: Path, pairs: list[Pair]) -> Path:
    """SNLI 1.0, with parses and the annotators' labels."""
    lines = ["\t".join(SNLI_COLUMNS)]
    for n, (premise, hypothesis, label) in enumerate(pairs):
        cells = dict.fromkeys(SNLI_COLUMNS, "")
        cells |= {"gold_label": label, "sentence1": premise, "sentence2": hypothesis}
        lines.append("\t".join({**cells, "pairID": f"{n}.jpg#0r1e"}.values()))
    return write_lines(path, *lines)


def write_snli(root: Path, *, train: int = 24, test: int = 9) -> Path:
    write_plain(root / "snli" / "train.tsv", some_pairs(train))
    write_plain(root / "snli" / "test.tsv", some_pairs(test, seed=1))
    return root


def write_xnli(root: Path, *, train: int = 24, languages: tuple[str, ...] = ("de", "en")) -> Path:
    """As the two archives unpack; MultiNLI's training file says "contradictory"."""
    training = [
        (premise, hypothesis, label.replace("contradiction", "contradictory"))
        for premise, hypothesis, label in some_pairs(train)
    ]
    folder = root / "XNLI-MT-1.0" / "multinli"
    write_plain(folder / "multinli.train.en.tsv", training, "premise hypo label")
    for split, number in (("dev", 3), ("test", 6)):
        lines = ["\t".join(XNLI_COLUMNS)]
        for language in languages:
            for premise, hypothesis, label in some_pairs(number, seed=2):
                cells = dict.fromkeys(XNLI_COLUMNS, "")
                cells |= {"language": language, "gold_label": label, "match": "True"}
                lines.append("\t".join({**cells, "sentence1": premise,
                                        "sentence2": hypothesis}.values()))  # fmt: skip
        write_lines(root / "XNLI-1.0" / f"xnli.{split}.tsv", *lines)
    return root
