"""Settings of CPT's cells on ImageNet."""

from bitcycle_lab.recipes import list_recipes, recipe
from bitcycle_lab.train.config import steps_of

INFOS = {info.name: info for info in list_recipes()}


def test_the_training_of_tables_3_and_4():
    config = recipe("imagenet-resnet50-cpt-4-6-6")
    assert (config.epochs, config.steps, config.data.batch_size) == (90, None, 256)
    assert config.precision.skip == ("conv1", "*.downsample.*", "fc")
    total = 90 * 5005
    assert [steps_of(m, total) for m in config.lr.milestones] == [30 * 5005, 60 * 5005]
    assert steps_of(config.eval.every, total) == 5005
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.1, 1e-4)


def test_bits_and_published_results():
    for name, forward, backward, published in (
        ("imagenet-resnet34-cpt-4-8-8", "CR:4-8:32", 8, 73.12),
        ("imagenet-resnet18-cpt-8-32", "CR:8-32:32", "fp32", 70.67),
    ):
        precision = recipe(name).precision
        assert (precision.forward, precision.backward) == (forward, backward)
        assert INFOS[name].results[0].value == published
