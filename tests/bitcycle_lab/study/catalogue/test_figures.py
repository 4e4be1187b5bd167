"""The figures of CPT: what each varies, and the published numbers that their runs have."""

from bitcycle_lab.study.study import STUDIES


def forwards(name, group):
    return [method.config.precision.forward for method in STUDIES[name]().of(group)]


def test_the_ablations_vary_one_thing():
    for network in ("ResNet-38", "ResNet-74"):
        static, *tops = forwards("fig7", f"{network}, CIFAR-100")
        assert (static, tops) == (8, [f"CR:3-{high}:32" for high in (4, 5, 6, 7, 8, 12, 16)])
        static, *cycles = forwards("fig8", f"{network}, CIFAR-100")
        assert (static, cycles) == (8, [f"CR:3-8:{n}" for n in (2, 4, 8, 16, 32, 64)])
    for name in ("fig7", "fig8"):
        assert {method.config.precision.backward for method in STUDIES[name]().methods} == {8}


def test_accuracy_against_cost_has_what_table_2_and_the_figure_print():
    methods = STUDIES["fig5"]().methods
    assert len(methods) == 34  # 5 ResNets x 6 + MobileNetV2 x 4
    where = [{p.where for p in method.published} for method in methods]
    assert where.count({"CPT Fig. 5"}) == 12
    assert where.count({"CPT Table 2"}) == 12  # 3 networks x 4 bits
    assert where.count(set()) == 10  # 4/6 and 3-4/6


def test_a_range_test_finds_the_lower_end_of_the_same_run():
    for name in ("fig4", "fig4-small"):
        study = STUDIES[name]()
        for group in study.groups:
            _, cyclic, found = study.of(group)
            low, high = str(cyclic.config.precision.forward).split("-")
            assert found.config.precision.forward == f"CR:auto-{high}"
            assert low in ("CR:3", "CR:4")
            assert (found.config.steps, found.config.lr) == (cyclic.config.steps, cyclic.config.lr)
