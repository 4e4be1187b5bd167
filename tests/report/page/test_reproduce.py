"""Configurations and commands."""

from dataclasses import replace

import yaml

from bitcycle.report.page.recorded import record
from bitcycle.report.page.reproduce import reproduce_section, study_command
from bitcycle.study.adjust import StudyOptions
from bitcycle.study.options import write_options
from bitcycle.train.configfile import from_dict

from .made_up import Elements


def sources(markup):
    """The texts that can be copied."""
    seen, found = Elements(markup), []
    texts = iter(seen.texts)
    for text in texts:
        if text == "copy":
            found.append(next(texts))
    return found


def test_every_method_has_a_command_per_seed_and_its_exact_configuration(made):
    shown = sources(reproduce_section(record(made), "bitcycle study run x"))
    assert shown[0] == "bitcycle study run x"
    assert shown[1].splitlines() == [
        "bitcycle train static.yaml --seed 0 --output again",
        "bitcycle train static.yaml --seed 1 --output again",
    ]
    run = made.methods[0].runs[0]
    assert shown[2] == (run.directory / "config.yaml").read_text(encoding="utf-8")
    assert shown[3].startswith("bitcycle train '<script>.yaml'")


def test_the_configuration_of_a_run_that_has_not_begun_is_shown_too(made):
    *_, shown = sources(reproduce_section(record(made)[3:], None))
    config = from_dict(yaml.safe_load(shown))
    assert config.precision == made.methods[3].method.config.precision


def test_finished_runs_have_their_digest_and_kernels(made):
    text = Elements(reproduce_section(record(made), None)).text
    assert "0123456789abcdef" in text
    assert "simulate: 2 layers" in text


def test_a_study_that_comes_with_the_package_is_named_others_have_a_file(made):
    named = replace(made, study=replace(made.study, name="demo"))
    assert study_command(named) == "bitcycle study run demo"
    assert study_command(replace(made, study=replace(made.study, name="mine"))) == (
        "bitcycle study run mine.yaml"
    )


def test_the_options_of_the_last_run_are_part_of_the_command(made):
    named = replace(made, study=replace(made.study, name="demo"))
    options = StudyOptions(overrides=("--steps", "9"), seeds=(3, 4), default_threads=2)
    write_options(named.output, "demo", options)
    assert study_command(named) == "bitcycle study run demo --seeds 3 4 --threads 2 --steps 9"
