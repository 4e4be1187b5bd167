"""What a table's reader is told."""

from bitcycle.study.caption import caption, states_text
from tests.study.made_up import method, study_result


def test_the_caption_says_how_ours_differs_from_the_published_set_up():
    result = study_result(
        [
            (method("a", 8, published={"accuracy": 92.0}), {0: 1.0, 1: None}, 1.0),
            (method("b", 4, changes={"steps": 1200}), {0: 1.0, 1: 2.0, 2: 3.0}, 1.0),
        ],
        scale="small",
        notes=("published with 64,000 steps.",),
    )
    assert caption(result) == (
        "Ours: digits_mlp on digits, 240 or 1,200 steps, 3 seeds, evaluated at FW8/BW8 (reduced "
        "scale). Published: CPT Table 2, a larger set-up: compare differences. Published with "
        "64,000 steps. Of 6 runs 1 failed, 1 missing."
    )


def test_a_study_of_its_own_has_nothing_published_and_no_scale():
    result = study_result([(method("a", 8), {0: 1.0}, 1.0)], seeds=(0,))
    assert caption(result) == "Ours: digits_mlp on digits, 240 steps, 1 seed, evaluated at FW8/BW8."


def test_before_a_run_the_planned_length_is_said():
    epochs = method("a", 8, changes={"steps": None, "epochs": 2.5})
    result = study_result([(epochs, {}, 1.0), (method("b", 8, group="g"), {}, 1.0)])
    assert caption(result).startswith("Ours: digits_mlp on digits, 240 steps, 2.5 epochs, 3 seeds.")


def test_many_lengths_are_a_range():
    entries = [
        (method(f"{n}", 8, changes={"steps": n, "name": f"n{n}"}), {0: 1.0}, 1.0)
        for n in (10, 20, 30, 40)
    ]
    assert ", 10 to 40 steps, " in caption(study_result(entries, seeds=(0,)))


def test_states_are_counted():
    result = study_result([(method("a", 8), {0: 1.0, 1: None}, 1.0)], seeds=(0, 1, 2, 3))
    assert states_text(result.methods[0]) == "1 failed, 2 missing"
