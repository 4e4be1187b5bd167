"""Train a convnet on scikit-learn's digits at 4 to 8 bits: `diff` this with plain_loop.py."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bitcycle as bc

STEPS, BATCH_SIZE, NUM_TEST = 300, 64, 360


class ConvNet(nn.Module):
    """Two 3x3 convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 1, 8, 8) -> logits (N, 10)."""
        x = F.relu(self.conv1(x))  # (N, 16, 4, 4)
        x = F.relu(self.conv2(x))  # (N, 32, 4, 4)
        return self.fc(x.flatten(1))


torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.images))
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[order] / 16
targets = torch.tensor(digits.target)[order]
train_images, train_targets = images[NUM_TEST:], targets[NUM_TEST:]

model = ConvNet()
bc.quantize_model(model, skip=["fc"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
bits = bc.PrecisionScheduler(model, forward="CR:4-8:8", backward=8, total_steps=STEPS)
for _ in range(STEPS):
    batch = torch.randint(len(train_images), (BATCH_SIZE,))
    loss = F.cross_entropy(model(train_images[batch]), train_targets[batch])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    lr.step()
    bits.step()

model.eval()
with torch.no_grad():
    predicted = model(images[:NUM_TEST]).argmax(dim=1)
accuracy = (predicted == targets[:NUM_TEST]).float().mean().item()
print(f"test accuracy {100 * accuracy:.1f} % after {STEPS} steps")
