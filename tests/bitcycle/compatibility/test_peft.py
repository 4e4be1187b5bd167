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


def language_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def adapted(model):
    """With an adapter, and with a head that is trained as a whole."""
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    )


@pytest.mark.parametrize("is_converted_back", [True, False])
def test_an_adapter_of_a_transformers_model_is_read_back_by_peft_alone(tmp_path, is_converted_back):
    """With the ranges of its layers, which PEFT does not miss in a float model."""
    tuned = bc.quantize_model(adapted(language_model()))
    bc.set_precision(tuned, "w8a8")
    tuned(torch.arange(8)[None])
    state = bc.float_state_dict(tuned)
    if is_converted_back:
        bc.unquantize_model(tuned)
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(language_model(), tmp_path)
    found = again.load_adapter(tmp_path, "default")
    assert found.missing_keys == []
    assert bool(found.unexpected_keys) == (not is_converted_back)
    assert all(key.endswith("act_range") for key in found.unexpected_keys)
    for name, value in peft.get_peft_model_state_dict(again).items():
        assert torch.equal(state[_with_adapter(name)], value), name


def _with_adapter(name):
    """The name in the model: PEFT leaves out the adapter's."""
    if name.endswith("lm_head.weight"):
        return name.replace("lm_head", "lm_head.modules_to_save.default")
    return name.replace(".weight", ".default.weight")


@pytest.mark.parametrize("converts_first", [True, False])
def test_a_merged_model_is_read_back_by_transformers_alone(tmp_path, converts_first):
    model = language_model()
    if converts_first:
        bc.quantize_model(model)
    tuned = adapted(model)
    if not converts_first:
        bc.quantize_model(tuned)
    merged = tuned.merge_and_unload()
    assert any(name.endswith("act_range") for name in merged.state_dict())
    merged.save_pretrained(tmp_path)
    _, report = type(merged).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
