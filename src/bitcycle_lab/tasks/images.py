"""Image classification: cross-entropy, top-1 and top-5 accuracy in percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle_lab.data import DATASETS, Batch, Samples, load_images, select
from bitcycle_lab.models import MODELS, build_model
from bitcycle_lab.tasks.base import TASKS, SampleTask, Split, Sums, accuracy_metrics, check_names
from bitcycle_lab.tasks.config import DataConfig, ModelConfig


@TASKS.register("images")
class ImageClassification(SampleTask):
    """Image classification; the model's classes and channels default to the dataset's.

    The validation split is held out of the training images, or the dataset's own.
    """

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        loaded = load_images(data.name, data.root, num_workers=data.num_workers)
        train, held_out = select(loaded.train, subset=data.subset, validation=data.validation)
        splits: dict[Split, Samples] = {"train": train, "test": loaded.test}
        validation = loaded.validation if held_out is None else held_out
        if validation is not None:
            splits["validation"] = validation
        super().__init__(model, data, seed=seed, splits=splits)
        self.num_classes = loaded.num_classes

    @classmethod
    def check(cls, model: ModelConfig, data: DataConfig) -> None:
        """Raise ValueError unless model and dataset are registered for images."""
        check_names("image", model, data)

    @property
    def chance(self) -> float:
        """100 / num_classes."""
        return 100 / self.num_classes

    def build_model(self) -> nn.Module:
        """The model with the dataset's classes and channels."""
        sizes = {"num_classes": self.num_classes}
        if "in_channels" in MODELS[self.model_config.name].options:
            sizes["in_channels"] = DATASETS[self.data_config.name].input_shape[0]
        return build_model(self.model_config.name, **{**sizes, **self.model_config.options})

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """Mean cross-entropy; sums of loss, correct predictions and samples."""
        logits = model(batch.inputs)  # (N, classes)
        loss = F.cross_entropy(logits, batch.targets)
        with torch.no_grad():
            count = batch.targets.shape[0]
            best = logits.topk(min(5, logits.shape[1]), dim=1).indices  # (N, 5)
            hits = best == batch.targets[:, None]
            sums = {
                "loss": loss.detach().double() * count,
                "count": loss.new_full((), count, dtype=torch.float64),
                "top1": hits[:, 0].sum().double(),
                "top5": hits.any(dim=1).sum().double(),
            }
        return loss, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Top-1 and top-5 accuracy in percent, and the mean loss."""
        metrics = accuracy_metrics(sums)
        top5 = 100 * sums["top5"] / max(sums["count"], 1.0)
        return {"accuracy": metrics["accuracy"], "top5": top5, "loss": metrics["loss"]}
