"""Your own task in one file: regression, with its own data, model, loss and metric.

A task defines data, model, loss and metric. `bitcycle_lab.run` adds bits, checkpoints, logs and
cost. The task interprets the names in `ModelConfig` and `DataConfig`; `check` may reject some.
"""

import tempfile
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from bitcycle_lab.data import Batch, Tensors, select
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig, SampleTask, Sums
from bitcycle_lab.train import OptimizerConfig, PrecisionConfig, RunConfig, run

NUM_TEST = 90


@TASKS.register("progression")
class Progression(SampleTask):
    """Predict the progression of diabetes within a year from ten measurements."""

    metric = "mae"
    higher_is_better = False

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        measured, progress = load_diabetes(return_X_y=True)
        inputs = torch.tensor(measured, dtype=torch.float32)
        inputs = inputs / inputs.std(dim=0)  # (442, 10)
        targets = torch.tensor(progress, dtype=torch.float32)
        self.mean, self.std = targets[NUM_TEST:].mean().item(), targets[NUM_TEST:].std().item()
        training = Tensors(inputs[NUM_TEST:], targets[NUM_TEST:])
        train, validation = select(training, validation=data.validation)
        splits = {"train": train, "test": Tensors(inputs[:NUM_TEST], targets[:NUM_TEST])}
        if validation is not None:
            splits["validation"] = validation
        super().__init__(model, data, seed=seed, splits=splits)

    def build_model(self) -> nn.Module:
        """Build two hidden layers; `width` is an option of the model."""
        width = self.model_config.options.get("width", 32)
        return nn.Sequential(
            nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """Return the mean loss to differentiate, and sums to add over batches and processes."""
        predicted = model(batch.inputs).squeeze(1) * self.std + self.mean  # (N,)
        loss = F.mse_loss(predicted / self.std, batch.targets / self.std)
        count = len(batch.targets)
        sums = {
            "loss": loss.detach() * count,
            "count": loss.new_tensor(count),
            "error": (predicted.detach() - batch.targets).abs().sum(),
        }
        return loss, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the values to report from sums over a split, "loss" and the metric among them."""
        return {"loss": sums["loss"] / sums["count"], "mae": sums["error"] / sums["count"]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as output:
        for name, forward, backward in [("float32", "fp32", "fp32"), ("cpt", "CR:3-8:8", 8)]:
            config = RunConfig(
                name=name,
                task="progression",
                model=ModelConfig(name="two-hidden-layers", options={"width": 64}),
                data=DataConfig(name="diabetes", batch_size=32, validation=50),
                optimizer=OptimizerConfig(lr=0.02, weight_decay=1e-3),
                precision=PrecisionConfig(forward=forward, backward=backward),
                epochs=20,
                threads=1,
                output=output,
            )
            result = run(config)
            cost = result.cost["relative_to_float32"]
            print(f"{name:<8} mean absolute error {result.value:.1f}, {cost:.3f} of the BitOPs")
