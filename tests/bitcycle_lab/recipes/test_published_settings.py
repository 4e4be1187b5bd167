"""Settings of the published experiments, written out, against the papers; and of small runs."""

from dataclasses import replace

import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.cost.spec import find_spec
from bitcycle_lab.recipes import list_recipes, recipe, with_bits
from bitcycle_lab.recipes.cells import cells_of
from bitcycle_lab.train.config import steps_of
from bitcycle_lab.train.config_file import override

INFOS = {info.name: info for info in list_recipes()}


def result_of(name):
    return [(p.metric, p.value, p.unit) for p in INFOS[name].results]


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
        ("cifar10-mobilenetv2-dorefa-8-8", 8, 8, 91.03),
        ("cifar100-mobilenetv2-anneal-4-6-6", "anneal:4-6:32", 6, 73.12),
        ("cifar100-resnet38-cpt-3-8-8-start60", "delay@0.375(CR:3-8:32)", 8, 69.6),
        ("cifar100-resnet74-cpt-3-6-6-start160", "delay@1.0(CR:3-6:32)", 6, 64.2),
        ("cifar100-resnet74-static-6-8", 6, 8, 70.51),
        ("cifar100-resnet74-gradcycle-6-6-10", 6, "CR:6-10:32", 70.32),
    ],
)
def test_bits_and_published_results_on_cifar(name, forward, backward, published):
    precision = recipe(name).precision
    assert (precision.forward, precision.backward) == (forward, backward)
    assert result_of(name)[0] == ("accuracy", published, "%")


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


def test_the_costs_that_can_be_read_off_figure_5():
    costs = {cell.name: cell.published[0].value for cell in cells_of("CPT Fig. 5")}
    assert len(costs) == 12  # three networks that no table has, at four bit-widths
    assert {name.split("-")[1] for name in costs} == {"resnet38", "resnet110", "resnet152"}
    assert costs["cifar100-resnet110-static-8-8"] == 402e6
    assert costs["cifar100-resnet110-cpt-3-6-6"] == 158e6


def test_small_runs_differ_in_their_bits_only():
    static = recipe("cifar10-resnet8-static-8-8-small")
    cpt = recipe("cifar10-resnet8-cpt-3-8-8-small")
    assert replace(cpt, name=static.name, precision=static.precision) == static
    assert (cpt.precision.forward, cpt.precision.backward) == ("CR:3-8:8", 8)
    assert (static.steps, static.data.subset, static.threads) == (512, 10_000, 1)


def test_the_training_of_tables_3_and_4():
    config = recipe("imagenet-resnet50-cpt-4-6-6")
    assert (config.epochs, config.steps, config.data.batch_size) == (90, None, 256)
    assert config.precision.skip == ("conv1", "*.downsample.*", "fc")
    total = 90 * 5005
    assert [steps_of(m, total) for m in config.lr.milestones] == [30 * 5005, 60 * 5005]
    assert steps_of(config.eval.every, total) == 5005
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.1, 1e-4)


def test_bits_and_published_results_on_imagenet():
    for name, forward, backward, published in (
        ("imagenet-resnet34-cpt-4-8-8", "CR:4-8:32", 8, 73.12),
        ("imagenet-resnet18-cpt-8-32", "CR:8-32:32", "fp32", 70.67),
    ):
        precision = recipe(name).precision
        assert (precision.forward, precision.backward) == (forward, backward)
        assert INFOS[name].results[0].value == published


def test_the_lstm():
    config = recipe("ptb-lstm-cpt-5-8-8")
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.momentum) == ("sgd", 20, 0)
    assert (config.lr.policy, config.lr.gamma, config.lr.patience) == ("plateau", 0.25, 0)
    assert (config.clip_norm, config.epochs) == (0.25, 40)
    assert (config.data.batch_size, config.data.sequence_length) == (20, 35)
    assert config.model.options["num_layers"] == 2
    assert config.model.options["dropout"] == 0.5
    assert steps_of(config.eval.every, 40 * 1328) == 1328  # the rate looks at every epoch
    assert (config.precision.forward, config.precision.backward) == ("CR:5-8:32", 8)
    assert INFOS[config.name].results[0].value == 96.39


def test_the_lstm_of_the_follow_up():
    sizes = {"embedding_dim": 800, "hidden_dim": 800, "num_layers": 1, "dropout": 0.5}
    assert recipe("ptb-lstm800").model.options == sizes
    assert INFOS["ptb-lstm800"].cycles == 8


def test_the_transformer():
    config = recipe("wikitext103-transformer-cpt-4-8-8")
    assert (config.optimizer.lr, config.optimizer.betas) == (5e-4, (0.9, 0.98))
    assert config.optimizer.weight_decay == 0.01
    assert (config.lr.policy, config.lr.warmup, config.steps) == ("inverse_sqrt", 4000, 50_000)
    assert config.data.sequence_length == 512
    assert 32_000 <= config.data.batch_size * config.data.sequence_length <= 64_000
    assert config.data.batch_size % config.accumulate == 0
    assert (config.precision.forward, config.precision.backward) == ("CR:4-8:32", 8)
    assert INFOS[config.name].results[0].value == 30.22


def test_the_gcn_of_the_follow_up():
    config = recipe("arxiv-gcn")
    assert (config.optimizer.name, config.optimizer.lr) == ("adam", 1e-3)
    assert (config.lr.policy, config.lr.min_lr, config.steps) == ("cosine", 1e-4, 500)
    assert config.data.features == "standardized"
    assert config.model.options == {"hidden_dim": 512, "num_layers": 3, "dropout": 0.2}
    assert config.precision.quantizer_options == {}  # FP-Agg


def test_sums_are_quantized_by_an_option():
    words = ["--precision.quantizer_options.aggregation", "quantized"]
    config = override(with_bits("arxiv-gcn", "static 8/8"), words)
    assert config.precision.quantizer_options == {"aggregation": "quantized"}


@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed"])
def test_citation_graphs_are_trained_statically_and_with_cpt(dataset):
    for model, name in (("gcn", "gcn"), ("graphsage", "sage")):
        static = recipe(f"{dataset}-{name}-static-8-8")
        cpt = recipe(f"{dataset}-{name}-cpt-3-8-8")
        assert (static.precision.forward, cpt.precision.forward) == (8, "CR:3-8:8")
        for config in (static, cpt, recipe(f"{dataset}-{name}-float32")):
            assert (config.model.name, config.data.name, config.steps) == (model, dataset, 200)
            assert config.precision.quantizer_options == {}  # FP-Agg


def test_xnli_has_the_published_settings():
    config, info = recipe("xnli-mbert"), INFOS["xnli-mbert"]
    assert (config.task, config.data.name, config.epochs) == ("pairs", "xnli", 2)
    assert (config.optimizer.lr, config.data.batch_size) == (1e-5, 64)
    assert config.data.sequence_length == 128
    assert config.model.path == "bert-base-multilingual-cased"
    assert (info.needs_data, info.cycles) == ("xnli", 2)


def test_snli_has_cpt_and_static_bits():
    assert recipe("snli-bert-cpt-5-8-8-small").precision.forward == "CR:5-8:8"
    assert recipe("snli-bert-static-8-8-small").precision.forward == 8
    assert recipe("snli-bert-float32-small").precision.is_float


def test_the_cost_of_xnli_is_known_without_its_files_and_its_model():
    pytest.importorskip("transformers")
    spec = find_spec("xnli-mbert", roles={"forward": 8, "backward": 8})
    assert spec.total_steps == 2 * 6136  # ceil(392,702 / 64)
    assert spec.input_shape == (128,)
    model = spec.build()
    assert {p.device.type for p in model.parameters()} == {"meta"}
    # bert-base-multilingual-cased: 177,853,440 with its pooler; positions 128 of 512, 3 labels
    expected = 177_853_440 - (512 - 128) * 768 + 3 * 769
    assert sum(p.numel() for p in model.parameters()) == expected
