"""Train on digits at 4 to 8 bits with Lightning: `diff` this with lightning_before.py."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import bitcycle as bc
from bitcycle.integrations.lightning import PrecisionCallback

NUM_TEST = 360


class Classifier(pl.LightningModule):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
        self.net = nn.Sequential(*layers)
        self.example_input_array = torch.zeros(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 64) -> logits (N, 10)."""
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of one batch."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Log the accuracy."""
        self.log("accuracy", (self(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer of the float32 weights."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


pl.seed_everything(0, verbose=False)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
data = TensorDataset(images, torch.tensor(digits.target))
train_data, test_data = Subset(data, range(NUM_TEST, len(data))), Subset(data, range(NUM_TEST))

model = Classifier()
bc.quantize_model(model)
trainer = pl.Trainer(
    callbacks=[PrecisionCallback(forward="CR:4-8:8", backward=8)],
    max_epochs=8,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(train_data, batch_size=64, shuffle=True))
(result,) = trainer.test(model, DataLoader(test_data, batch_size=NUM_TEST), verbose=False)
print(f"test accuracy {100 * result['accuracy']:.1f} % after {trainer.global_step} steps")
