"""The first training samples, as evaluation cuts them into batches."""

import pytest
import torch

from bitcycle.landscape.run import FirstSamples
from bitcycle.precision import Precision
from bitcycle.tasks import TASKS, DataConfig, ModelConfig
from bitcycle.train.evaluate import evaluate
from bitcycle.train.session import build_session
from tests.train.small import float32, lstm, small, write_words

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task():
    model = ModelConfig(name="digits_mlp", options={"width": 8})
    return TASKS["images"](model, DataConfig(subset=300, eval_batch_size=128))


@pytest.mark.parametrize(("num", "sizes"), [(128, [128]), (200, [128, 72]), (None, [128, 128, 44])])
def test_samples_are_counted_exactly(task, num, sizes):
    first = FirstSamples(task, num, CPU)
    assert [len(batch.inputs) for batch in first] == sizes
    assert [len(batch.targets) for batch in first] == sizes
    assert first.num_samples == sum(sizes)
    whole = next(iter(task.eval_batches("train")))
    assert torch.equal(next(iter(first)).inputs, whole.inputs[: sizes[0]])


def test_the_mean_loss_of_all_is_the_evaluated_one_to_the_bit(tmp_path):
    session = build_session(small(tmp_path, precision=float32()))
    expected = evaluate(session.task, session.model, "train", Precision(), device=CPU)
    session.model.eval()
    with torch.no_grad():
        found = FirstSamples(session.task, None, CPU).mean_loss(session.model)
    assert found == expected["loss"]


@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
def test_windows_of_a_text_come_whole_and_state_starts_anew_in_every_pass(tmp_path):
    session = build_session(lstm(tmp_path / "runs", write_words(tmp_path / "text")))
    session.model.eval()
    first = FirstSamples(session.task, 6, CPU)
    assert [batch.inputs.shape for batch in first] == [(5, 4), (5, 4)]  # two windows, four streams
    assert first.num_samples == 8
    with torch.no_grad():
        assert first.mean_loss(session.model) == first.mean_loss(session.model)


def test_no_sample_is_an_error(task):
    with pytest.raises(ValueError, match=r"samples \(0\)"):
        FirstSamples(task, 0, CPU)
