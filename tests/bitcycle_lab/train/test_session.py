"""The parts of a run: built from the configuration, saved and taken back whole."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bitcycle.extras import MissingExtraError
from bitcycle.kernels import choice
from bitcycle.model_precision import kernels_by_layer
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.train import PrecisionConfig, SwaConfig, TrackingConfig
from bitcycle_lab.train import session as module
from bitcycle_lab.train.checkpoint import read_state, write_state
from bitcycle_lab.train.final_evaluation import weights_digest
from bitcycle_lab.train.loop import remaining_steps, train_step
from bitcycle_lab.train.session import (
    build_session,
    preserve_torch_settings,
    swa_start,
)
from tests.bitcycle_lab.train.small import convnet, lstm, small, write_words


@pytest.fixture(autouse=True)
def _settings():
    with preserve_torch_settings():
        yield


def advance(session, steps):
    session.model.train()
    for _ in range(steps):
        train_step(session, [session.batches.batch_at(session.step)])
        session.step += 1


def through_files(state, folder):
    for name, part in state.items():
        write_state(folder, name, part)
    return {name: read_state(folder, name) for name in state}


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    return True


@pytest.mark.parametrize("kind", ["images", "language"])
def test_the_state_comes_back_whole_through_files(tmp_path, kind):
    if kind == "images":
        config = small(tmp_path, swa=SwaConfig(start=0, every=1))
    else:
        config = lstm(tmp_path, write_words(tmp_path / "text"))
    first = build_session(config)
    advance(first, 4)
    state = through_files(first.state_dict(), tmp_path)
    second = build_session(config)
    torch.manual_seed(99)
    np.random.seed(99)
    second.load_state_dict(state)
    assert second.step == 4
    advance(first, 3)
    generators = first.state_dict()["run"]["ranks"][0]["random"]
    second.load_state_dict(state)  # both share this process's generators
    advance(second, 3)
    assert same(second.state_dict()["model"], first.state_dict()["model"])
    assert same(second.state_dict()["optimizer"], first.state_dict()["optimizer"])
    assert second.state_dict()["run"]["cost"] == first.state_dict()["run"]["cost"]
    assert second.state_dict()["run"]["bits"] == first.state_dict()["run"]["bits"]
    assert same(second.state_dict()["run"]["ranks"][0]["random"]["torch"], generators["torch"])


def test_the_kernels_of_the_beginning_are_restored(tmp_path):
    config = small(tmp_path, swa=SwaConfig(start=0))
    other = dataclasses.replace(
        config, precision=PrecisionConfig(forward="CR:3-8:2", backward=6, kernel="native")
    )
    state = through_files(build_session(other).state_dict(), tmp_path)
    session = build_session(config)
    assert set(kernels_by_layer(session.model).values()) == {"auto"}
    session.load_state_dict(state)
    assert set(kernels_by_layer(session.model).values()) == {"native"}
    assert set(kernels_by_layer(session.swa).values()) == {"native"}


def test_a_run_with_the_native_library_does_not_resume_without_it(tmp_path, monkeypatch):
    session = build_session(small(tmp_path))
    state = session.state_dict()
    state["run"]["kernels"] = dict.fromkeys(state["run"]["kernels"], "native")
    state["run"]["has_native_library"] = True
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    with pytest.raises(ValueError, match="'native'"):
        session.load_state_dict(state)
    state["run"]["has_native_library"] = False  # it was float32 products from the first step
    session.load_state_dict(state)


def test_the_number_of_threads_of_the_beginning_is_restored_unless_it_is_given(tmp_path):
    torch.set_num_threads(2)
    free = small(tmp_path, threads=None)
    state = build_session(free).state_dict()
    torch.set_num_threads(1)
    build_session(free).load_state_dict(state)
    assert torch.get_num_threads() == 2
    build_session(small(tmp_path, threads=1)).load_state_dict(state)
    assert torch.get_num_threads() == 1


def test_another_number_of_processes_is_said_aloud(tmp_path):
    config = lstm(tmp_path, write_words(tmp_path / "text"))
    session = build_session(config)
    advance(session, 2)
    state = session.state_dict()
    state["run"]["ranks"] = state["run"]["ranks"] * 2
    fresh = build_session(config)
    with pytest.warns(BitcycleWarning, match="2 processes"):
        fresh.load_state_dict(state)
    assert fresh.task.carried == {}
    for name, total in session.window.items():  # of both processes
        assert fresh.window[name] == 2 * total
    assert fresh.step == 2


def test_layers_that_are_skipped_stay_float(tmp_path):
    precision = PrecisionConfig(forward=4, skip=("fc1", "fc3"))
    session = build_session(small(tmp_path, precision=precision))
    assert list(kernels_by_layer(session.model)) == ["fc2"]


def test_the_model_depends_on_the_seed_and_on_nothing_the_caller_drew(tmp_path):
    torch.manual_seed(1)
    first = build_session(small(tmp_path)).model.state_dict()
    torch.manual_seed(2)
    assert same(build_session(small(tmp_path)).model.state_dict(), first)
    other = build_session(small(tmp_path, seed=1)).model.state_dict()
    assert not torch.equal(other["fc1.weight"], first["fc1.weight"])


@pytest.mark.parametrize(("start", "step"), [(None, None), (5, 5), (0.5, 6), (1.0, 12)])
def test_averaging_starts_at_a_time_of_the_run(tmp_path, start, step):
    session = build_session(small(tmp_path, swa=SwaConfig(start=start)))
    assert swa_start(session) == step
    assert (session.swa is None) == (start is None)


def test_a_missing_extra_is_found_before_anything_happens(tmp_path, monkeypatch):
    def missing(name, *, extra, purpose):
        raise MissingExtraError(f"{purpose} need {name}")

    monkeypatch.setattr(module, "require", missing)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        build_session(small(tmp_path, tracking=TrackingConfig(tensorboard=True)))


def test_memory_that_is_not_filled_changes_no_weight(tmp_path, monkeypatch):
    """Filled with NaN by torch's default, or left as it is."""
    setting = torch.utils.deterministic
    setting.fill_uninitialized_memory = True

    def end_of_run():
        session = build_session(convnet(tmp_path))
        for micro_batches, _ in zip(remaining_steps(session), range(4), strict=False):
            train_step(session, micro_batches)
        return setting.fill_uninitialized_memory, weights_digest(session.model)

    with preserve_torch_settings():
        is_filled, plain = end_of_run()
        assert not is_filled
    assert setting.fill_uninitialized_memory  # preserve_torch_settings restored it
    monkeypatch.setattr(module, "_DETERMINISTIC", SimpleNamespace())
    assert end_of_run() == (True, plain)


def test_deterministic_algorithms_are_on_unless_told_otherwise(tmp_path):
    build_session(small(tmp_path))
    assert torch.are_deterministic_algorithms_enabled()
    build_session(small(tmp_path, deterministic=False))
    assert not torch.are_deterministic_algorithms_enabled()
