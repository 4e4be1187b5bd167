"""The tokenizer that is trained on the training text."""

import json
import subprocess
import sys

import pytest

from bitcycle.data.tokenizer import SMALLEST, read_tokenizer, train_tokenizer
from tests.data.pair_layouts import some_pairs

pytest.importorskip("tokenizers")

TEXTS = [text for pair in some_pairs(60) for text in pair[:2]]


def test_equal_text_gives_an_equal_tokenizer_in_every_process():
    code = (
        "from bitcycle.data.tokenizer import train_tokenizer\n"
        "from tests.data.test_tokenizer import TEXTS\n"
        "print(train_tokenizer(TEXTS, 300), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == train_tokenizer(TEXTS, 300) == train_tokenizer(iter(TEXTS), 300)
    assert done.stdout != train_tokenizer(TEXTS, 290)


def test_it_has_no_more_tokens_than_asked_for_and_can_spell_anything():
    assert read_tokenizer(train_tokenizer(TEXTS, 280), length=9).get_vocab_size() == 280
    tokenizer = read_tokenizer(train_tokenizer(TEXTS, 5000), length=40)
    assert SMALLEST < tokenizer.get_vocab_size() < 400
    for text in ("the dog", "\u0e40\u0e14\u0e47\u0e01", "\u4e2d\u6587 \U0001f600"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == f" {text}"
    with pytest.raises(ValueError, match=rf"vocab_size \(100\) must be at least {SMALLEST}"):
        train_tokenizer(TEXTS, 100)


def test_a_pair_is_marked_cut_from_the_longer_side_and_padded():
    text = train_tokenizer(TEXTS, 400)
    pair = read_tokenizer(text, length=12).encode("A Dog", "the man is waiting")
    words = ["\u0120a", "\u0120dog", "\u0120the", "\u0120man", "\u0120is", "\u0120waiting"]
    assert pair.tokens == ["[CLS]", *words[:2], "[SEP]", *words[2:], "[SEP]", "[PAD]", "[PAD]",
                           "[PAD]"]  # fmt: skip
    assert pair.attention_mask == [1] * 9 + [0] * 3
    assert pair.type_ids == [0] * 4 + [1] * 5 + [0] * 3
    short = read_tokenizer(text, length=7).encode("A Dog", "the man is waiting")
    assert short.tokens == ["[CLS]", *words[:2], "[SEP]", *words[2:4], "[SEP]"]


def test_json_that_is_no_tokenizer_is_an_error():
    with pytest.raises(ValueError, match="mine.json is not the JSON of a tokenizer"):
        read_tokenizer("{}", length=8, source="mine.json")
    bare = json.dumps({**json.loads(train_tokenizer(TEXTS, 300)), "padding": None})
    with pytest.raises(ValueError, match="names no token to pad with"):
        read_tokenizer(bare, length=8)
