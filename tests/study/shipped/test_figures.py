"""The runs behind CPT's figures."""

from bitcycle.study.base import STUDIES


def labels(name, group):
    return [method.label for method in STUDIES[name]().of(group)]


def test_figure_1_has_three_schedules_on_one_network():
    assert labels("fig1", "ResNet-74, CIFAR-100") == [
        "static 8/8", "progressive 3-8/8", "CPT 3-8/8",
    ]  # fmt: skip


def test_landscape_figures_train_once_and_name_the_command_that_draws_them():
    for name in ("fig2", "fig6"):
        study = STUDIES[name]()
        assert study.seeds == (0,)
        assert any("bitcycle landscape" in note for note in study.notes)


def test_figure_4_compares_the_found_bound_with_the_published_one():
    study = STUDIES["fig4"]()
    assert study.groups == ("ResNet-152, CIFAR-100", "MobileNetV2, CIFAR-100")
    forwards = [
        [method.config.precision.forward for method in study.of(group)] for group in study.groups
    ]
    assert forwards == [[8, "CR:3-8:32", "CR:auto-8:32"], [8, "CR:4-8:32", "CR:auto-8:32"]]


def test_figure_5_has_every_published_cost_that_was_read_off_it():
    costs = {
        (method.config.model.name, method.label): p.value
        for method in STUDIES["fig5"]().methods
        for p in method.published
        if p.where == "CPT Fig. 5"
    }
    assert len(costs) == 12
    assert costs["resnet110", "CPT 3-6/6"] == 1.58e8


def test_figures_7_and_8_vary_one_thing_around_cpt():
    assert labels("fig7", "ResNet-38, CIFAR-100") == [
        "static 8/8", "CPT 3-4/8", "CPT 3-5/8", "CPT 3-6/8", "CPT 3-7/8", "CPT 3-8/8",
        "CPT 3-12/8", "CPT 3-16/8",
    ]  # fmt: skip
    assert labels("fig8", "ResNet-74, CIFAR-100") == [
        "static 8/8", "N = 2", "N = 4", "N = 8", "N = 16", "N = 32", "N = 64",
    ]  # fmt: skip


def test_what_is_our_choice_is_said():
    for name in ("fig2", "fig4", "fig7", "fig8", "fig9"):
        text = " ".join(STUDIES[name]().notes)
        assert "our" in text or "not told" in text, name
