"""Pairs as tokens."""

import numpy as np
import pytest
import torch

from bitcycle.data import Batches, EncodedPairs, PairEncoder, Samples, load_pairs
from bitcycle.data.encoded import split_targets
from bitcycle.data.tokenizer import train_tokenizer
from tests.data.pair_layouts import write_xnli

pytest.importorskip("tokenizers")


@pytest.fixture
def splits(tmp_path):
    return load_pairs("xnli", write_xnli(tmp_path))


def encoder(splits, length=16):
    return PairEncoder(lambda: train_tokenizer(splits.train.premises, 300), length=length)


def test_samples_are_tokens_mask_and_sentence_and_a_target_tells_label_and_language(splits):
    samples = EncodedPairs(splits.test, encoder(splits), 3)
    assert isinstance(samples, Samples)
    inputs, targets = samples.fetch(np.array([7, 0]), None)
    assert (inputs.shape, inputs.dtype) == ((2, 3, 16), torch.int64)
    labels, languages = split_targets(targets, 3)
    assert labels.tolist() == splits.test.labels[[7, 0]].tolist()
    assert [splits.languages[n] for n in languages] == ["en", "de"]
    alone, _ = samples.fetch(np.array([0]), None)
    assert torch.equal(inputs[1], alone[0])  # a pair does not depend on its neighbours
    tokens, mask, sentence = inputs[0]
    assert mask.unique().tolist() == [0, 1] or bool(mask.all())
    assert sentence.max() == 1
    assert not tokens[mask == 0].any()  # [PAD] is 0


def test_a_batch_is_a_function_of_the_step(splits):
    samples = EncodedPairs(splits.train, encoder(splits), 3)
    first, again = (Batches(samples, batch_size=5, seed=1).batch_at(7) for _ in range(2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    other = Batches(samples, batch_size=5, seed=2).batch_at(7)
    assert not torch.equal(first.indices, other.indices)


def test_the_tokenizer_is_made_once_and_only_when_needed(splits):
    calls = []

    def make():
        calls.append(1)
        return train_tokenizer(splits.train.premises, 300)

    encode = PairEncoder(make, length=8)
    assert calls == []
    assert encode([("a dog", "a man")]).shape == (1, 3, 8)
    assert encode.vocab_size <= 300
    assert calls == [1]
    given = PairEncoder(make, length=8)
    given.text = encode.text
    assert torch.equal(given([("a dog", "a man")]), encode([("a dog", "a man")]))
    assert calls == [1]


def test_samples_are_fetched_onto_the_device_that_uses_them(splits):
    inputs, targets = (
        EncodedPairs(splits.test, encoder(splits), 3).to("meta").fetch(np.array([0]), None)
    )
    assert (inputs.device.type, targets.device.type) == ("meta", "meta")
