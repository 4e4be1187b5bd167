"""Train a small Llama in NVFP4 and heal it in bf16 for the last 18 % of the steps.

The weights are random and the data is made here: nothing is downloaded. As in the published recipe
(arXiv 2509.25149) healing changes the forward pass only, and the head and the last feed-forward
block are in bf16 throughout.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import bitcycle as bc
from bitcycle.integrations.transformers import PrecisionCallback

torch.manual_seed(0)
start, stride = torch.randint(32, (3200, 1)), torch.randint(1, 5, (3200, 1))
tokens = (start + stride * torch.arange(12)) % 32  # (3200, 12): count in ones to fours
data = [{"input_ids": line, "labels": line} for line in tokens]
arguments = TrainingArguments(
    output_dir="transformers_nvfp4", num_train_epochs=4, per_device_train_batch_size=64,
    learning_rate=5e-3, logging_steps=40, save_strategy="no", report_to="none", use_cpu=True,
    disable_tqdm=True,
)  # fmt: skip

config = LlamaConfig(vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
config.num_attention_heads = config.num_key_value_heads = 4
model = LlamaForCausalLM(config)
bc.quantize_model(model, "nvfp4")
in_bf16 = {"lm_head": "bf16", "model.layers.1.mlp": "bf16"}
healing = PrecisionCallback(
    forward={"*": "stages:nvfp4@0.82,bf16", **in_bf16}, backward={"*": "nvfp4", **in_bf16}
)
trainer = Trainer(model, arguments, train_dataset=data[200:], callbacks=[healing])
trainer.train()
loss = trainer.evaluate(data[:200])["eval_loss"]
print(f"test loss {loss:.2f} after {trainer.state.global_step} steps")
