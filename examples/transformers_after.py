"""Sums of digits at 4 to 8 bits with Transformers: `diff` this with transformers_before.py."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import bitcycle as bc
from bitcycle.integrations.transformers import PrecisionCallback

NUM_TEST = 200

torch.manual_seed(0)
tokens = torch.randint(1, 10, (2200, 4))
labels = (tokens.sum(dim=1) > 20).long()  # is the sum of four digits above 20, its mean?
data = [{"input_ids": t, "labels": label} for t, label in zip(tokens, labels, strict=True)]

config = BertConfig(
    vocab_size=10,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=4,
    hidden_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
bc.quantize_model(model)
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir="transformers_example",
        num_train_epochs=4,
        per_device_train_batch_size=50,
        learning_rate=5e-3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    ),
    callbacks=[PrecisionCallback(forward="CR:4-8:8", backward=8)],
    train_dataset=data[NUM_TEST:],
)
trainer.train()
logits = torch.tensor(trainer.predict(data[:NUM_TEST]).predictions)
accuracy = (logits.argmax(dim=1) == labels[:NUM_TEST]).float().mean().item()
print(f"test accuracy {100 * accuracy:.1f} % after {trainer.state.global_step} steps")
