"""Models of transformers, built from a config without a download, converted and trained a step."""

import pytest
import torch

import bitcycle as bc

transformers = pytest.importorskip("transformers", reason="needs transformers")

WIDTHS = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
}  # fmt: skip
WORDS = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS = torch.arange(1, 15).view(2, 7)
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1])


def bert():
    config = transformers.BertConfig(vocab_size=50, **WIDTHS, **NO_DROPOUT)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    inputs = {"input_ids": TOKENS, "attention_mask": mask, "labels": LABELS}
    return transformers.BertForSequenceClassification(config), inputs


def gpt2():
    config = transformers.GPT2Config(
        **WORDS, n_embd=16, n_layer=2, n_head=4, n_positions=8,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": TOKENS, "labels": TOKENS}


def llama():
    config = transformers.LlamaConfig(**WORDS, **WIDTHS, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), {"input_ids": TOKENS, "labels": TOKENS}


def vit():
    config = transformers.ViTConfig(**WIDTHS, **NO_DROPOUT, image_size=32, patch_size=16)
    return transformers.ViTForImageClassification(config), images()


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=2
    )
    return transformers.ResNetForImageClassification(config), images()


def mobilenet():
    config = transformers.MobileNetV2Config(
        depth_multiplier=0.25, image_size=32, classifier_dropout_prob=0.0, num_labels=2
    )
    return transformers.MobileNetV2ForImageClassification(config), images()


def images():
    return {"pixel_values": IMAGES, "labels": LABELS}


# how many layers are converted, by type
MODELS = {
    bert: {"BertSelfAttention": 2, "Linear": 2 * 6 + 2},
    gpt2: {"GPT2Attention": 2, "Conv1D": 2 * 4, "Linear": 1},
    llama: {"LlamaAttention": 2, "Linear": 2 * 7 + 1},
    vit: {"ViTAttention": 2, "Linear": 2 * 6 + 1, "Conv2d": 1},
    resnet: {"Conv2d": 6, "Linear": 1},
    mobilenet: {"Conv2d": 52, "Linear": 1},
}

pytestmark = [
    pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__),
    pytest.mark.filterwarnings("ignore:.*never observed"),
]


def build(make):
    torch.manual_seed(0)
    return make()


def test_everything_that_multiplies_is_converted(make):
    model, inputs = build(make)
    audit = bc.audit(bc.quantize_model(model), inputs)
    types = [row.type for row in audit.converted_rows]
    assert {kind: types.count(kind) for kind in types} == MODELS[make]
    assert [row.name for row in audit.float_rows if row.multiplies] == []


def test_what_is_left_out_is_listed(make):
    model, inputs = build(make)
    bc.quantize_model(model, only=[torch.nn.Linear])
    left = [row.type for row in bc.audit(model, inputs).float_rows if row.multiplies]
    expected = {kind: count for kind, count in MODELS[make].items() if kind != "Linear"}
    assert {kind: left.count(kind) for kind in left} == expected


def test_without_bits_it_is_the_float_model_and_converting_back_is_exact(make):
    model, inputs = build(make)
    model.eval()
    with torch.no_grad():
        expected = model(**inputs).logits
        bc.quantize_model(model)
        assert torch.equal(model(**inputs).logits, expected)
        bc.set_precision(model, "FW4/BW8")
        assert not torch.equal(model(**inputs).logits, expected)
        bc.unquantize_model(model)
        assert torch.equal(model(**inputs).logits, expected)
    assert model.state_dict().keys() == build(make)[0].state_dict().keys()


def test_it_trains_a_step(make):
    model, inputs = build(make)
    bc.set_precision(bc.quantize_model(model.train(), kernel="simulate"), "FW4/BW8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    unused = {name for name, p in model.named_parameters() if p.grad is None}
    assert unused == set()
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
    still = [n for n, p in model.named_parameters() if torch.equal(p, before[n])]
    assert len(still) < len(before) / 10
    assert bc.audit(model).converted_rows[0].is_observed


def test_the_products_of_its_attention_are_quantized(make):
    model, inputs = build(make)
    if not any("Attention" in kind for kind in MODELS[make]):
        pytest.skip("a convolutional net")
    bc.quantize_model(model, kernel="simulate")
    model.train()
    bc.set_precision(model, "fp32")
    expected = model(**inputs).logits
    attention = [row.name for row in bc.audit(model).rows if "Attention" in row.type]
    for name in attention:
        model.get_submodule(name).set_precision(bc.Precision(act=2))
    coarse = model(**inputs).logits
    for name in attention:
        model.get_submodule(name).set_precision(bc.Precision(act=12))
    fine = model(**inputs).logits
    assert 0 < (fine - expected).norm() < 0.05 * (coarse - expected).norm()


def test_a_saved_model_is_read_back_by_transformers_alone(make, tmp_path):
    model, inputs = build(make)
    float_keys = set(model.state_dict())
    bc.set_precision(bc.quantize_model(model), "w8a8")
    model.train()(**inputs)  # observes ranges
    ranges = {k: v for k, v in model.state_dict().items() if k not in float_keys}
    assert ranges
    model.save_pretrained(tmp_path)
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    for name, value in bc.float_state_dict(model).items():
        assert torch.equal(again.state_dict()[name], value), name

    bc.set_precision(bc.quantize_model(again), "w8a8")
    again.load_state_dict(ranges, strict=False)
    with torch.no_grad():
        expected = model.eval()(**inputs).logits
        assert torch.equal(again.eval()(**inputs).logits, expected)


def test_what_transformers_leaves_out_of_a_file_is_as_before_after_converting_back(make):
    model, _ = build(make)
    model._keys_to_ignore_on_save = {"head.mask"}
    bc.quantize_model(model)
    assert len(model._keys_to_ignore_on_save) > 1
    bc.unquantize_model(model)
    assert model._keys_to_ignore_on_save == {"head.mask"}
