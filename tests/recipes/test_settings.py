"""Settings of single cells, written out, against the papers."""

import dataclasses

import pytest

from bitcycle.recipes import list_recipes, recipe
from bitcycle.recipes.cifar import figure5, figure7, figure8
from bitcycle.schedules import parse_schedule
from bitcycle.schedules.cycle import Cycle
from bitcycle.train.config import steps_of

PUBLISHED = {info.name: info for info in list_recipes()}


def result_of(name):
    return [(p.metric, p.value, p.unit) for p in PUBLISHED[name].results]


def test_cpt_on_cifar():
    config = recipe("cifar100-resnet74-cpt-3-8-8")
    assert (config.task, config.model.name, config.data.name) == ("images", "resnet74", "cifar100")
    assert (config.precision.forward, config.precision.backward) == ("CR:3-8:32", 8)
    assert (config.precision.quantizer, config.precision.skip) == ("sbm", ("fc",))
    assert (config.steps, config.data.batch_size, config.epochs) == (64_000, 128, None)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (optimizer.nesterov, optimizer.weight_decay) == (False, 1e-4)
    assert (config.lr.policy, config.lr.gamma, config.lr.warmup) == ("step", 0.1, 0)
    assert [steps_of(m, 64_000) for m in config.lr.milestones] == [32_000, 48_000]
    assert config.eval.precision == "high"
    assert config.swa.start is None
    assert config.clip_norm is None
    assert result_of(config.name)[0] == ("accuracy", 72.35, "%")


@pytest.mark.parametrize(
    ("name", "forward", "backward", "published"),
    [
        ("cifar10-resnet164-cpt-3-6-6", "CR:3-6:32", 6, 93.02),
        ("cifar100-mobilenetv2-anneal-4-6-6", "anneal:4-6:32", 6, 73.12),
        ("cifar100-resnet38-cpt-3-8-8-start60", "delay@0.375(CR:3-8:32)", 8, 69.6),
        ("cifar100-resnet74-cpt-3-6-6-start160", "delay@1.0(CR:3-6:32)", 6, 64.2),
        ("cifar100-resnet74-static-6-8", 6, 8, 70.51),
        ("cifar100-resnet74-gradcycle-6-6-10", 6, "CR:6-10:32", 70.32),
        ("cifar100-resnet74-progressive-3-8-8", "ramp:3-8@0.5", 8, None),
        ("cifar100-resnet38-cpt-3-8-8-n64", "CR:3-8:64", 8, None),
        ("imagenet-resnet34-cpt-4-8-8", "CR:4-8:32", 8, 73.12),
        ("imagenet-resnet18-cpt-8-32", "CR:8-32:32", "fp32", 70.67),
        ("ptb-lstm-cpt-5-8-8", "CR:5-8:32", 8, 96.39),
        ("wikitext103-transformer-cpt-4-8-8", "CR:4-8:32", 8, 30.22),
        ("ptb-lstm800-et-h-5-6-6", "ET-H:5-6:8", 6, None),
        ("digits-cpt-3-8-8", "CR:3-8:8", 8, None),
        ("cifar10-resnet8-cpt-3-8-8-small", "CR:3-8:8", 8, None),
        ("pubmed-gcn-rt-v-3-8-8-qagg", "RT-V:3-8:8", 8, None),
    ],
)
def test_bits_and_published_results(name, forward, backward, published):
    precision = recipe(name).precision
    assert (precision.forward, precision.backward) == (forward, backward)
    assert [value for _, value, _ in result_of(name)][:1] == ([published] if published else [])


def test_the_first_stage_of_table_1_has_its_own_bits_and_rate():
    config = recipe("cifar100-resnet38-stage1-4-lr0.06")
    assert config.precision.forward == "stages:4@0.5,fp32"
    assert config.precision.backward == "stages:8@0.5,fp32"
    assert (config.lr.warmup, config.lr.warmup_lr) == (0.5, 0.06)
    assert (config.optimizer.lr, config.lr.milestones) == (0.01, (0.75,))
    assert result_of(config.name) == [("accuracy", 68.63, "%")]
    plain = recipe("cifar100-resnet74-stage1-fp32-lr0.01")
    assert plain.precision.is_float
    assert result_of(plain.name) == [("accuracy", 65.62, "%")]


def test_a_run_that_never_starts_cycling_is_evaluated_at_what_it_trained_with():
    assert recipe("cifar100-resnet38-cpt-3-8-8-start160").eval.precision == "scheduled"
    assert recipe("cifar100-resnet38-cpt-3-8-8-start120").eval.precision == "high"
    assert set(parse_schedule("delay@1.0(CR:3-8:32)").values(100)) == {3}


def test_imagenet():
    config = recipe("imagenet-resnet50-cpt-4-6-6")
    assert (config.epochs, config.steps, config.data.batch_size) == (90, None, 256)
    assert config.precision.skip == ("conv1", "*.downsample.*", "fc")
    total = 90 * 5005
    assert [steps_of(m, total) for m in config.lr.milestones] == [30 * 5005, 60 * 5005]
    assert steps_of(config.eval.every, total) == 5005
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.1, 1e-4)


def test_the_lstm():
    config = recipe("ptb-lstm-cpt-5-8-8")
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.momentum) == ("sgd", 20, 0)
    assert (config.lr.policy, config.lr.gamma, config.lr.patience) == ("plateau", 0.25, 0)
    assert (config.clip_norm, config.epochs) == (0.25, 40)
    assert (config.data.batch_size, config.data.sequence_length) == (20, 35)
    assert config.model.options["num_layers"] == 2
    assert config.model.options["dropout"] == 0.5
    assert steps_of(config.eval.every, 40 * 1328) == 1328  # the rate looks at every epoch
    assert recipe("ptb-lstm800-static-8-8").model.options == {
        "embedding_dim": 800,
        "hidden_dim": 800,
        "num_layers": 1,
        "dropout": 0.5,
    }


def test_the_transformer():
    config = recipe("wikitext103-transformer-static-6-8")
    assert (config.optimizer.lr, config.optimizer.betas) == (5e-4, (0.9, 0.98))
    assert config.optimizer.weight_decay == 0.01
    assert (config.lr.policy, config.lr.warmup, config.steps) == ("inverse_sqrt", 4000, 50_000)
    assert config.data.sequence_length == 512
    assert 32_000 <= config.data.batch_size * config.data.sequence_length <= 64_000
    assert config.data.batch_size % config.accumulate == 0


def test_the_gcn():
    config = recipe("arxiv-gcn-static-8-8")
    assert (config.optimizer.name, config.optimizer.lr) == ("adam", 1e-3)
    assert (config.lr.policy, config.lr.min_lr, config.steps) == ("cosine", 1e-4, 500)
    assert config.data.features == "standardized"
    assert config.model.options == {"hidden_dim": 512, "num_layers": 3, "dropout": 0.2}
    assert config.precision.quantizer_options == {}  # FP-Agg
    quantized = recipe("arxiv-gcn-static-8-8-qagg")
    assert quantized.precision.quantizer_options == {"aggregation": "quantized"}
    assert dataclasses.replace(quantized, name=config.name, precision=config.precision) == config


@pytest.mark.parametrize(("dataset", "mode"), [("cora", ""), ("pubmed", "-qagg")])
def test_citation_graphs_are_trained_statically_and_with_cpt_in_both_modes(dataset, mode):
    for model, name in (("gcn", "gcn"), ("graphsage", "sage")):
        static = recipe(f"{dataset}-{name}-static-8-8{mode}")
        cpt = recipe(f"{dataset}-{name}-cpt-3-8-8{mode}")
        assert (static.precision.forward, cpt.precision.forward) == (8, "CR:3-8:8")
        for config in (static, cpt):
            assert (config.model.name, config.data.name, config.steps) == (model, dataset, 200)
            options = config.precision.quantizer_options
            assert options.get("aggregation", "float32") == ("quantized" if mode else "float32")


def test_the_ablations_vary_one_thing():
    tops = [entry.config.precision.forward for entry in figure7()]
    assert tops[:7] == tops[7:] == [f"CR:3-{high}:32" for high in (4, 5, 6, 7, 8, 12, 16)]
    cycles = [entry.config.precision.forward for entry in figure8()]
    assert cycles[:6] == cycles[6:] == [f"CR:3-8:{n}" for n in (2, 4, 8, 16, 32, 64)]
    for entry in (*figure7(), *figure8()):
        assert entry.config.precision.backward == 8
        is_published = entry.config.precision.forward == "CR:3-8:32"
        assert ("this one is ours" in " ".join(entry.notes)) != is_published


def test_accuracy_against_cost_has_the_costs_that_can_be_read_off():
    costs = {e.config.name: e.published[0].value for e in figure5() if e.published}
    assert len(costs) == 12  # three networks that no table has, at four bit-widths
    assert {name.split("-")[1] for name in costs} == {"resnet38", "resnet110", "resnet152"}
    assert costs["cifar100-resnet110-static-8-8"] == 402e6
    assert costs["cifar100-resnet110-cpt-3-6-6"] == 158e6


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_every_schedule_has_a_recipe_at_eight_cycles(dataset):
    for name in Cycle.named():
        config = recipe(f"{dataset}-resnet74-{name.lower()}-3-8-8-n8")
        assert (config.precision.forward, config.precision.backward) == (f"{name}:3-8:8", 8)
        assert (config.steps, config.data.name) == (64_000, dataset)
