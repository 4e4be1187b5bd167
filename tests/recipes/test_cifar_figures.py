"""The runs of CPT's figures: which bits, which cycles, what is ours and says so."""

from bitcycle.recipes.cifar_figures import figure1, figure2, figure5, figure6, figure7, figure8


def test_the_ablations_vary_one_thing():
    tops = [entry.config.precision.forward for entry in figure7()]
    assert tops[:7] == tops[7:] == [f"CR:3-{high}:32" for high in (4, 5, 6, 7, 8, 12, 16)]
    cycles = [entry.config.precision.forward for entry in figure8()]
    assert cycles[:6] == cycles[6:] == [f"CR:3-8:{n}" for n in (2, 4, 8, 16, 32, 64)]
    for entry in (*figure7(), *figure8()):
        assert entry.config.precision.backward == 8
        is_published = entry.config.precision.forward == "CR:3-8:32"
        assert ("this one is ours" in " ".join(entry.notes)) != is_published


def test_curves_and_landscapes_are_of_the_same_schedules():
    curves, surfaces, wide = list(figure1()), list(figure2()), list(figure6())
    forwards = [entry.config.precision.forward for entry in curves]
    assert forwards == [8, "ramp:3-8@0.5", "CR:3-8:32"]
    assert forwards == [entry.config.precision.forward for entry in surfaces]
    assert {entry.config.model.name for entry in (*surfaces, *wide)} == {"resnet110"}


def test_accuracy_against_cost_has_the_costs_that_can_be_read_off():
    costs = {e.config.name: e.published[0].value for e in figure5() if e.published}
    assert len(costs) == 12  # three networks that no table has, at four bit-widths
    assert {name.split("-")[1] for name in costs} == {"resnet38", "resnet110", "resnet152"}
    assert costs["cifar100-resnet110-static-8-8"] == 402e6
    assert costs["cifar100-resnet110-cpt-3-6-6"] == 158e6
