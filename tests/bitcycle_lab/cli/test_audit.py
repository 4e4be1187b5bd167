"""`bitcycle audit` from the keyboard's side."""

import pytest

from bitcycle_lab.cli.main import main


def test_it_lists_the_layers_with_the_bits_of_step_0(capsys):
    assert main(["audit", "digits-cpt-3-8-8"]) == 0
    shown = capsys.readouterr().out
    assert "w3a3e8" in shown
    assert "modules that multiply are converted" in shown


def test_overrides_change_what_is_converted_and_verbose_names_kernels(capsys):
    arguments = ["--precision.quantizer", "absmax", "--precision.forward", "5", "--verbose"]
    assert main(["audit", "digits-cpt-3-8-8", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "AbsMax" in shown
    assert "simulate" in shown or "native" in shown


@pytest.mark.parametrize(
    "recipe",
    [
        "digits-float32",
        "cifar100-resnet74-cpt-3-8-8",
        "wikitext2-transformer-cpt-4-8-8-small",
        "cora-gcn-cpt-3-8-8",
        "snli-bert-cpt-5-8-8-small",
    ],
)
def test_it_needs_no_data(recipe, capsys):
    assert main(["audit", recipe, "--data.root", "/nowhere"]) == 0
    assert "modules that multiply are converted" in capsys.readouterr().out


def test_operands_of_backward_products_are_shown_and_checked(capsys):
    recipe = "wikitext2-transformer-nvfp4-heal-forward"
    changes = ["--precision.forward", "bf16", "--precision.backward", "nvfp4"]
    assert main(["audit", recipe, *changes]) == 0
    assert "w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4" in capsys.readouterr().out
    refused = ["audit", "digits-cpt-3-8-8", "--precision.backward_operands", "backward"]
    assert main(refused) == 2
    assert "grid" in capsys.readouterr().err


def test_a_schedule_with_auto_has_the_fewest_bits_of_its_range_test(capsys):
    arguments = ["--precision.forward", "CR:auto-8:8", "--range_test.low", "5"]
    assert main(["audit", "digits-cpt-3-8-8", *arguments]) == 0
    assert "w5a5e8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "give a recipe"),
        (["nothing"], "nothing"),
        (["digits-float32", "--verbos"], "--verbose"),
    ],
)
def test_what_cannot_be_audited_is_a_usage_error(arguments, named, capsys):
    assert main(["audit", *arguments]) == 2
    assert named in capsys.readouterr().err
