"""Transformer encoders that classify sentence pairs: a small BERT, or a pretrained one.

`bert` builds a model from its options. `load_pretrained` loads a downloaded model from a folder;
nothing is downloaded and no code of the folder is run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bitcycle.extras import require
from bitcycle_lab.models.base import Model, check_positive, cpu_generator, register_model

PURPOSE = "models of Hugging Face"
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spm.model")
# our options -> the keys of a transformers config
SIZES = {
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "ffn_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "dropout": "hidden_dropout_prob",
}
_OFFLINE = {"local_files_only": True, "trust_remote_code": False}


class PairClassifier(Model):
    """A sequence classifier of transformers, `net`, as a `Model` with positional inputs."""

    def __init__(self, net: nn.Module, *, num_classes: int, vocab_size: int, length: int) -> None:
        super().__init__()
        self.net = net
        self.num_classes = num_classes
        self.vocab_size = vocab_size
        self.length = length  # of example_inputs
        takes = inspect.signature(type(net).forward).parameters
        num_types = getattr(net.config, "type_vocab_size", 0)
        self.takes_types = "token_type_ids" in takes and num_types > 1

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor | None = None,
        types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Token ids (N, T), mask with 0 for padding, token type ids -> logits (N, num_classes).

        Without a mask no token is padding; without types all belong to the first sentence.
        """
        more = {"token_type_ids": types} if self.takes_types else {}
        logits: torch.Tensor = self.net(input_ids=tokens, attention_mask=mask, **more).logits
        return logits

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """Uniform tokens without padding; their second half is the second sentence."""
        shape = (batch_size, self.length)
        tokens = torch.randint(self.vocab_size, shape, generator=cpu_generator(seed), device="cpu")
        mask = torch.ones(shape, dtype=torch.int64, device="cpu")
        types = (torch.arange(self.length, device="cpu") >= self.length // 2).long().expand(shape)
        return tokens.to(device), mask.to(device), types.to(device)


@register_model(extra="transformers")
def bert(
    *,
    vocab_size: int = 4096,
    num_classes: int = 3,
    dim: int = 128,
    ffn_dim: int = 512,
    num_layers: int = 2,
    num_heads: int = 2,
    dropout: float = 0.1,
    max_length: int = 128,
) -> PairClassifier:
    """BERT encoder with a classifier of sentence pairs: 2 layers of 128."""
    check_positive(
        vocab_size=vocab_size,
        num_classes=num_classes,
        dim=dim,
        ffn_dim=ffn_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        max_length=max_length,
    )
    if dim % num_heads:
        raise ValueError(f"dim ({dim}) must be a multiple of num_heads ({num_heads})")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout ({dropout}) must be in [0, 1)")
    transformers = require("transformers", extra="transformers", purpose=PURPOSE)
    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=dim,
        intermediate_size=ffn_dim,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        max_position_embeddings=max_length,
        num_labels=num_classes,
    )
    net = transformers.BertForSequenceClassification(config)
    return PairClassifier(net, num_classes=num_classes, vocab_size=vocab_size, length=max_length)


def load_pretrained(
    path: str | Path, *, num_classes: int, length: int, options: Mapping[str, Any] | None = None
) -> PairClassifier:
    """Load a model from a folder; its classifier is new if it has another number of classes.

    options: sizes that the folder's config must match.
    """
    folder = check_folder(path)
    transformers = require("transformers", extra="transformers", purpose=PURPOSE)
    config = transformers.AutoConfig.from_pretrained(folder, **_OFFLINE)
    _check_sizes(folder, config, length, options or {})
    with _quiet(transformers.logging):  # `_check_loaded` reports missing weights
        net, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=num_classes,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            output_loading_info=True,
            **_OFFLINE,
        )
    _check_loaded(folder, net.base_model_prefix, info)
    return PairClassifier(net, num_classes=num_classes, vocab_size=config.vocab_size, length=length)


def pretrained_tokenizer(path: str | Path) -> str:
    """The JSON of the folder's tokenizer, with its padding token."""
    folder = check_folder(path)
    transformers = require("transformers", extra="transformers", purpose=PURPOSE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_OFFLINE)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or tokenizer.pad_token_id is None:
        lacks = "is not a fast one" if backend is None else "has no token to pad with"
        raise ValueError(f"the tokenizer of {folder} {lacks}")
    backend.enable_padding(
        pad_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
        pad_type_id=tokenizer.pad_token_type_id,
        direction=tokenizer.padding_side,
    )
    text: str = backend.to_str()
    return text


def check_folder(path: str | Path) -> Path:
    """The folder as a path; FileNotFoundError if a file of the model is missing."""
    folder = Path(path).expanduser()
    expected = "config.json, model.safetensors and tokenizer.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"model.path ({folder}) is no folder; expected: {expected}")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json; expected: {expected}")
    if not any(folder.glob("*.safetensors")):
        pickled = [file.name for file in sorted(folder.glob("*.bin"))]
        why = f" (the pickle {pickled[0]} is not read)" if pickled else ""
        raise FileNotFoundError(f"{folder} has no *.safetensors{why}; expected: {expected}")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise FileNotFoundError(
            f"{folder} has no tokenizer ({', '.join(TOKENIZERS)}); expected: {expected}"
        )
    return folder


def _check_sizes(folder: Path, config: Any, length: int, options: Mapping[str, Any]) -> None:
    for option, key in SIZES.items():
        has = getattr(config, key, None)
        if option in options and has is not None and options[option] != has:
            raise ValueError(
                f"model.options.{option} ({options[option]}) must be {has}, the {key} of {folder}"
            )
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise ValueError(
            f"data.sequence_length ({length}) must be at most {longest}, the positions of {folder}"
        )


def _check_loaded(folder: Path, prefix: str, info: Mapping[str, Any]) -> None:
    """Raise ValueError if weights other than those of classifier and pooler are missing."""
    wrong = sorted(
        {str(key) for key in info["missing_keys"]}
        | {str(entry[0]) for entry in info["mismatched_keys"]}
    )
    wrong = [key for key in wrong if key.startswith(f"{prefix}.") and ".pooler." not in key]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"the weights in {folder} do not fit its config.json: {', '.join(wrong[:3])}{more}"
        )


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Turn off transformers' warnings and progress bars inside the `with`."""
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
