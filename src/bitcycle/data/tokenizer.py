"""A tokenizer of one's own: byte-level BPE, a pure function of the training text and its size.

Bytes instead of characters, because every text of every language is then known; BPE, because
WordPiece, as the package trains it (0.23), gives other tokens each time it is trained on one text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bitcycle.extras import require

SPECIAL = ("[PAD]", "[CLS]", "[SEP]")
SMALLEST = 256 + len(SPECIAL)  # every byte has a token
_PURPOSE = "tokenizers"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> str:
    """The JSON of a tokenizer: lower case, [CLS] premise [SEP] hypothesis [SEP].

    It has at most `vocab_size` tokens, fewer when the text has fewer pairs to merge.
    """
    if vocab_size < SMALLEST:
        raise ValueError(f"vocab_size ({vocab_size}) must be at least {SMALLEST}: bytes and marks")
    package = require("tokenizers", extra="transformers", purpose=_PURPOSE)
    tokenizer = package.Tokenizer(package.models.BPE())
    normal = package.normalizers
    tokenizer.normalizer = normal.Sequence([normal.NFKC(), normal.Lowercase()])
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(package.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, SPECIAL.index(mark)) for mark in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_padding(pad_id=0, pad_token=SPECIAL[0])
    text: str = tokenizer.to_str()
    return text


def read_tokenizer(text: str, *, length: int, source: str | Path = "tokenizer") -> Any:
    """A tokenizer from its JSON that cuts and pads every pair to `length` tokens.

    Padded with the token the JSON names for it, so it must have a `padding` section.
    """
    package = require("tokenizers", extra="transformers", purpose=_PURPOSE)
    try:
        tokenizer = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises nothing more special
        raise ValueError(f"{source} is not the JSON of a tokenizer: {error}") from None
    if tokenizer.padding is None:
        raise ValueError(f"{source} names no token to pad with (its `padding` is null)")
    padding = {k: tokenizer.padding[k] for k in ("pad_id", "pad_token", "pad_type_id", "direction")}
    tokenizer.enable_padding(**padding, length=length)
    tokenizer.enable_truncation(length, strategy="longest_first")
    return tokenizer
