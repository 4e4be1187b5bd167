"""Commands without anything of a machine."""

from bitcycle.study.adjust import StudyOptions, adjust
from bitcycle.study.find import find_study
from bitcycle.study.publish.commands import needs_data, study_commands
from tests.study.made_up import method, study_result


def commands(name, **options):
    given = StudyOptions(**options)
    return study_commands(adjust(find_study(name), given), given)


def test_threads_of_all_runs_are_part_of_the_command():
    run, publish = commands("digits")
    assert run == "bitcycle study run digits --output RUNS --threads 1"
    assert publish == "bitcycle study publish digits --output RUNS --threads 1 --to results"


def test_folders_are_places_also_where_nobody_gave_the_data():
    assert commands("gcn-small")[0].endswith("--data.root DATA")
    run, _ = commands("gcn-small", overrides=("--data.root=/mnt/me/cora", "--steps", "5"))
    assert (
        run == "bitcycle study run gcn-small --output RUNS --threads 1 --data.root DATA --steps 5"
    )


def test_seeds_are_named_when_they_were_chosen():
    assert "--seeds 3 4" in commands("digits", seeds=(3, 4))[0]


def test_a_study_of_a_file_is_named_by_a_file():
    study = study_result([(method("a"), {0: 1.0}, 1.0)]).study
    assert (
        study_commands(study, StudyOptions())[0] == "bitcycle study run made-up.yaml --output RUNS"
    )


def test_built_in_data_needs_no_folder():
    assert needs_data(find_study("digits")) == ()
    assert needs_data(find_study("table2-small")) == ("cifar10",)
