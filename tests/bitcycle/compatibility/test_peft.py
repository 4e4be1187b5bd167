"""PEFT's LoRA on either side of the conversion."""

import pytest
import torch
from torch import nn

import bitcycle as bc

from .training import inputs

peft = pytest.importorskip("peft")


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def lora(model):
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0", "2"])
    return peft.get_peft_model(model, config)


def learn(model, steps=20):
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=0.05)
    x = inputs()[0]
    losses = []
    for _ in range(steps):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def converted_names(model):
    return [row.name for row in bc.audit(model).rows if row.is_converted]


def test_conversion_first_leaves_the_adapters_float_on_a_quantized_base():
    model = bc.quantize_model(plain())
    tuned = lora(model)
    bc.set_precision(tuned, "w4a4e8")
    assert all(name.endswith("base_layer") for name in converted_names(tuned))
    assert len(converted_names(tuned)) == 2
    frozen = model[0].base_layer.weight.clone()
    losses = learn(tuned)
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(model[0].base_layer.weight, frozen)
    assert not model[0].base_layer.weight.requires_grad


def test_adapters_first_converts_them_too_unless_they_are_skipped():
    tuned = lora(plain())
    bc.quantize_model(tuned)
    names = converted_names(tuned)
    assert len(names) == 6
    assert sum("lora_" in name for name in names) == 4
    bc.set_precision(tuned, "w4a8e8")
    losses = learn(tuned)
    assert losses[-1] < losses[0]

    other = bc.quantize_model(lora(plain()), skip=["*lora_*"])
    assert all(name.endswith("base_layer") for name in converted_names(other))


def test_a_schedule_reaches_the_base_through_peft():
    tuned = lora(bc.quantize_model(plain()))
    bits = bc.PrecisionScheduler(tuned, forward="CR:3-8:1", backward=8, total_steps=6)
    seen = []
    for _ in range(6):
        seen.append(tuned.base_model.model[0].base_layer.precision.weight)
        tuned(inputs()[0]).sum().backward()
        bits.step()
    assert seen[0] == 3
    assert seen[-1] == 8


def test_merging_puts_the_adapters_into_the_float_weights_of_the_converted_layers():
    model = bc.quantize_model(plain())
    tuned = lora(model)
    learn(tuned)  # in full precision, where merged and unmerged are the same product
    x = inputs()[0]
    expected = tuned(x)
    merged = tuned.merge_and_unload()
    torch.testing.assert_close(merged(x), expected, rtol=1e-4, atol=1e-5)
    assert len(converted_names(merged)) == 2
    bc.set_precision(merged, "w4a4e8")
    assert not torch.equal(merged(x), expected)


def test_a_saved_adapter_has_no_bits_and_no_ranges(tmp_path):
    tuned = lora(bc.quantize_model(plain()))
    bc.set_precision(tuned, "w4a4e8")
    learn(tuned, 2)
    state = peft.get_peft_model_state_dict(tuned)
    assert all("lora_" in name for name in state)
