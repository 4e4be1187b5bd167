"""Classification of sentence pairs (SNLI, XNLI): cross-entropy, accuracy in percent.

The model is built from its options with a tokenizer trained on the training text, or loaded from
the folder of a pretrained model (`model.path`). Every pair is truncated and padded to
`data.sequence_length` tokens, so that all batches cost the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle_lab.data import Batch, EncodedPairs, PairEncoder, Samples, load_pairs, select
from bitcycle_lab.data.pairs import MIN_VOCAB, read_tokenizer, split_targets, train_tokenizer
from bitcycle_lab.models import MODELS, build_model
from bitcycle_lab.models.bert import check_folder, load_pretrained, pretrained_tokenizer
from bitcycle_lab.tasks.base import TASKS, SampleTask, Split, Sums, accuracy_metrics, check_names
from bitcycle_lab.tasks.config import DataConfig, ModelConfig

TOKENIZER_FILE = "tokenizer.json"
MIN_LENGTH = 5  # [CLS], two [SEP] and a token of each sentence


@TASKS.register("pairs")
class PairClassification(SampleTask):
    """Pair classification; with languages, one more accuracy for each, such as accuracy_de."""

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        if model.path is not None:
            check_folder(model.path)
        loaded = load_pairs(data.name, data.root)
        self.labels, self.languages = loaded.labels, loaded.languages
        self.texts = loaded.train
        self.encoder = PairEncoder(self._make_tokenizer, length=data.sequence_length)
        every: dict[Split, Samples] = {
            "train": EncodedPairs(loaded.train, self.encoder, len(self.labels)),
            "test": EncodedPairs(loaded.test, self.encoder, len(self.labels)),
        }
        every["train"], held_out = select(
            every["train"], subset=data.subset, validation=data.validation
        )
        if held_out is not None:
            every["validation"] = held_out
        elif loaded.validation is not None:
            every["validation"] = EncodedPairs(loaded.validation, self.encoder, len(self.labels))
        super().__init__(model, data, seed=seed, splits=every)

    @classmethod
    def check(cls, model: ModelConfig, data: DataConfig) -> None:
        """Raise ValueError unless names, sequence length and vocabulary size are valid."""
        check_names("pair", model, data)
        if data.sequence_length < MIN_LENGTH:
            raise ValueError(
                f"data.sequence_length ({data.sequence_length}) must be at least {MIN_LENGTH}: "
                "two sentences, [CLS] and two [SEP]"
            )
        max_length = model.options.get("max_length", data.sequence_length)
        if data.sequence_length > max_length:
            raise ValueError(
                f"data.sequence_length ({data.sequence_length}) must be at most "
                f"model.options.max_length ({max_length})"
            )
        vocab_size = model.options.get("vocab_size", MIN_VOCAB)
        if vocab_size < MIN_VOCAB:
            raise ValueError(
                f"model.options.vocab_size ({vocab_size}) must be at least {MIN_VOCAB}"
            )

    @property
    def chance(self) -> float:
        """100 / number of labels."""
        return 100 / len(self.labels)

    def _make_tokenizer(self) -> str:
        if self.model_config.path is not None:
            return pretrained_tokenizer(self.model_config.path)
        default = MODELS[self.model_config.name].options["vocab_size"]
        return train_tokenizer(
            self._training_text(), self.model_config.options.get("vocab_size", default)
        )

    def _training_text(self) -> Iterator[str]:
        """The sentences of the whole file: the tokens do not depend on `data.subset`."""
        for premise, hypothesis in zip(self.texts.premises, self.texts.hypotheses, strict=True):
            yield premise
            yield hypothesis

    def files(self) -> dict[str, str]:
        """The tokenizer, so that a resumed run uses the same one."""
        return {TOKENIZER_FILE: self.encoder.text}

    def take_files(self, folder: Path) -> None:
        """Use the tokenizer of a run."""
        path = folder / TOKENIZER_FILE
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            read_tokenizer(text, length=self.encoder.length, source=path)  # raises if damaged
            self.encoder.text = text

    def build_model(self) -> nn.Module:
        """The model for the tokenizer's tokens and the data's labels; `model.path`: pretrained."""
        config, length = self.model_config, self.data_config.sequence_length
        num_classes = config.options.get("num_classes", len(self.labels))
        if num_classes < len(self.labels):
            raise ValueError(
                f"model.options.num_classes ({num_classes}) must be at least {len(self.labels)}, "
                f"the labels of {self.data_config.name}"
            )
        if config.path is not None:
            return load_pretrained(
                config.path, num_classes=num_classes, length=length, options=config.options
            )
        sizes = {"num_classes": num_classes, "max_length": length}
        return build_model(
            config.name, **{**sizes, **config.options, "vocab_size": self.encoder.vocab_size}
        )

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Token ids, attention mask and token type ids, each (N, T)."""
        return tuple(batch.inputs.unbind(1))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """Mean cross-entropy; sums of loss, correct predictions and pairs, also by language."""
        labels, languages = split_targets(batch.targets, len(self.labels))
        logits = model(*self.inputs(batch))  # (N, labels)
        loss = F.cross_entropy(logits, labels)
        with torch.no_grad():
            hits = (logits.argmax(dim=1) == labels).double()
            sums = {
                "loss": loss.detach().double() * len(labels),
                "count": hits.new_full((), len(labels)),
                "top1": hits.sum(),
            }
            if len(self.languages) > 1:
                in_language = F.one_hot(languages, len(self.languages)).double()  # (N, languages)
                counts, correct = in_language.sum(dim=0), hits @ in_language
                for number, name in enumerate(self.languages[1:], start=1):
                    sums[f"count_{name}"], sums[f"top1_{name}"] = counts[number], correct[number]
        return loss, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Accuracy in percent over all pairs and by language, and the mean loss."""
        metrics = accuracy_metrics(sums)
        for name in self.languages[1:]:
            if sums.get(f"count_{name}", 0.0) > 0:
                metrics[f"accuracy_{name}"] = 100 * sums[f"top1_{name}"] / sums[f"count_{name}"]
        return metrics
