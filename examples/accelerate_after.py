"""Train on digits at 4 to 8 bits with Accelerate: `diff` this with accelerate_before.py."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitcycle as bc

NUM_EPOCHS, NUM_TEST = 8, 360

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
targets = torch.tensor(digits.target)
train_data = TensorDataset(images[NUM_TEST:], targets[NUM_TEST:])
batches = DataLoader(train_data, batch_size=32, shuffle=True, drop_last=True)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
bc.quantize_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
total_steps = NUM_EPOCHS * -(-len(batches) // 2)
bits = bc.PrecisionScheduler(model, forward="CR:4-8:8", backward=8, total_steps=total_steps)
accelerator.register_for_checkpointing(bits)
for _ in range(NUM_EPOCHS):
    for inputs, labels in batches:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                bits.step()

model.eval()
with torch.no_grad():
    accuracy = (model(images[:NUM_TEST]).argmax(dim=1) == targets[:NUM_TEST]).float().mean().item()
print(f"test accuracy {100 * accuracy:.1f} % after {total_steps} steps")
