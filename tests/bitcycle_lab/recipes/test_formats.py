"""Recipes in formats: the published healing, what stays in bf16, and cycles over MX."""

import pytest

import bitcycle as bc
from bitcycle.schedules import parse_schedule
from bitcycle_lab.models import build_model
from bitcycle_lab.recipes import list_recipes, recipe

BASE = "wikitext2-transformer"
INFOS = {info.name: info for info in list_recipes()}
# forward and backward of the layers without a pattern of their own, and the quantizer
EXPECTED = {
    "bf16": ("bf16", "bf16", "sbm"),
    "fp8": ("e4m3", "e5m2", "fp8"),
    "mxfp8": ("mxfp8", "mxfp8", "mx"),
    "mx-cpt": ("CR:mxfp4,mxfp8,bf16:8", "mxfp8", "mx"),
    "nvfp4": ("nvfp4", "nvfp4", "nvfp4"),
    "nvfp4-heal": ("stages:nvfp4@0.82,bf16", "nvfp4", "nvfp4"),
    "nvfp4-heal-forward": ("stages:nvfp4@0.82,bf16", "nvfp4", "nvfp4"),
    "nvfp4-heal-both": ("stages:nvfp4@0.82,bf16", "stages:nvfp4@0.82,bf16", "nvfp4"),
}
LEFT_IN_BF16 = {"decoder", "layers.1.fc1", "layers.1.fc2"}


def converted(config):
    """The recipe's model, with few words, and the schedule of its formats."""
    model = build_model(config.model.name, vocab_size=50, **config.model.options)
    precision = config.precision
    rules = bc.quantizers.QUANTIZERS[precision.quantizer](**precision.quantizer_options)
    bc.quantize_model(model, rules, skip=precision.skip, kernel=precision.kernel)
    return model, bc.PrecisionScheduler(
        model, total_steps=config.steps, **precision.schedule_texts(),
        backward_operands=precision.backward_operands,
    )  # fmt: skip


def in_force(model):
    """The bits of every layer that has a weight."""
    return {
        row.name: row.precision for row in bc.audit(model).converted_rows if row.type == "Linear"
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_has_the_formats_of_its_name_and_is_small(name):
    config, info = recipe(f"{BASE}-{name}"), INFOS[f"{BASE}-{name}"]
    forward, backward, quantizer = EXPECTED[name]
    texts = (config.precision.forward, config.precision.backward)
    assert tuple(t["*"] if isinstance(t, dict) else t for t in texts) == (forward, backward)
    assert config.precision.quantizer == quantizer
    assert (info.scale, info.needs_data) == ("small", "wikitext-2")
    base = recipe(BASE)
    assert (config.model, config.data, config.optimizer, config.steps) == (
        base.model, base.data, base.optimizer, base.steps,
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("nvfp4")])
def test_nvfp4_leaves_the_head_and_a_sixth_of_the_other_layers_in_bf16(name):
    model, _ = converted(recipe(f"{BASE}-{name}"))
    bits = in_force(model)
    assert {layer for layer, text in bits.items() if text == "w=bf16,a=bf16,e=bf16"} == LEFT_IN_BF16
    assert {bits[layer] for layer in set(bits) - LEFT_IN_BF16} == {"w=nvfp4,a=nvfp4,e=nvfp4"}
    assert len(bits) - 1 == 12  # layers without the head: 2 of 12 are in bf16, published 15 %


@pytest.mark.parametrize(
    ("name", "healed"),
    [
        # published: output in bf16, grad_input and grad_weight in nvfp4
        ("nvfp4-heal-forward", "w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4"),
        ("nvfp4-heal", "w=bf16,a=bf16,e=nvfp4"),
        ("nvfp4-heal-both", "w=bf16,a=bf16,e=bf16"),
    ],
)
def test_healing_is_the_last_18_percent(name, healed):
    config = recipe(f"{BASE}-{name}")
    _, bits = converted(config)
    switch = 328  # 0.82 x 400
    assert config.steps == 400

    def at(step):
        found = bits.precision_at(step)  # one precision where all layers agree
        return str(found["layers.0.fc1"] if isinstance(found, dict) else found)

    nvfp4 = "w=nvfp4,a=nvfp4,e=nvfp4"
    assert [at(step) for step in (0, switch - 1, switch, 399)] == [nvfp4, nvfp4, healed, healed]


def test_cycles_over_mx_end_at_bf16_and_visit_every_format():
    schedule = parse_schedule(recipe(f"{BASE}-mx-cpt").precision.forward)
    values = [str(bits) for bits in schedule.values(400)]
    assert set(values) == {"mxfp4", "mxfp8", "bf16"}
    assert (values[0], values[-1]) == ("mxfp4", "bf16")
    assert values[:50] == values[50:100]


def test_mx_rounds_scales_up_so_that_nothing_clips():
    for name in ("mxfp8", "mx-cpt"):
        assert recipe(f"{BASE}-{name}").precision.quantizer_options == {"scale": "rceil"}


def test_the_list_shows_formats():
    assert INFOS[f"{BASE}-mx-cpt"].bits == "CR:mxfp4,mxfp8,bf16:8 / mxfp8"
    assert INFOS[f"{BASE}-fp8"].bits == "e4m3 / e5m2"
    assert INFOS[f"{BASE}-nvfp4-heal"].bits == "stages:nvfp4@0.82,bf16 / nvfp4"
    shown = INFOS[f"{BASE}-nvfp4-heal-forward"].bits
    assert shown == "stages:nvfp4@0.82,bf16 / nvfp4 (its operands too)"
