"""The pair classifier: built from options, or loaded from a folder."""

import json
import sys

import pytest
import torch

from bitcycle.extras import MissingExtraError
from bitcycle_lab.data.pairs import read_tokenizer
from bitcycle_lab.models import build_model
from bitcycle_lab.models.bert import load_pretrained, pretrained_tokenizer
from tests.bitcycle_lab.models.pretrained import write_model

transformers = pytest.importorskip("transformers")

TINY = {"vocab_size": 30, "dim": 8, "ffn_dim": 16, "num_layers": 1, "num_heads": 2, "max_length": 6}


def tiny(**options):
    torch.manual_seed(0)
    return build_model("bert", **{**TINY, **options}).eval()


def test_the_sizes_are_those_of_the_options():
    model = tiny(num_classes=5)
    d, f = 8, 16
    embeddings = (30 + 6 + 2) * d + 2 * d  # tokens, positions, sentences; a norm
    layer = 4 * (d * d + d) + 2 * d + (d * f + f) + (f * d + d) + 2 * d
    head = (d * d + d) + (5 * d + 5)
    assert sum(p.numel() for p in model.parameters()) == embeddings + layer + head
    assert model(*model.example_inputs(3)).shape == (3, 5)


def test_padding_does_not_change_a_pair():
    model = tiny()
    tokens, mask, types = (part[:1] for part in model.example_inputs())
    short = model(tokens[:, :4], mask[:, :4], types[:, :4])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    assert torch.allclose(model(tokens, mask, types), short, atol=1e-6)
    assert not torch.allclose(model(tokens, torch.ones_like(mask), types), short, atol=1e-6)


def test_sentences_are_told_apart_and_mask_and_sentences_may_be_left_out():
    model = tiny()
    tokens, mask, types = model.example_inputs()
    assert not torch.equal(model(tokens, mask, types), model(tokens, mask, 1 - types))
    assert torch.allclose(model(tokens), model(tokens, mask, 0 * types), atol=1e-6)


def test_sizes_that_cannot_be_are_errors():
    for options, message in (
        ({"num_heads": 3}, r"dim \(8\).*num_heads \(3\)"),
        ({"num_layers": 0}, "num_layers"),
        ({"dropout": 1.0}, r"dropout \(1.0\)"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny(**options)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"\[transformers\]"):
        tiny()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def copied(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def load(folder, length=16, **options):
    return load_pretrained(folder, num_classes=3, length=length, options=options)


def test_weights_are_the_folders_and_the_classifier_is_drawn_from_the_seed(folder):
    torch.manual_seed(0)
    first = load(folder)
    torch.manual_seed(0)
    assert torch.equal(load(folder).net.classifier.weight, first.net.classifier.weight)
    torch.manual_seed(1)
    assert not torch.equal(load(folder).net.classifier.weight, first.net.classifier.weight)
    stored = transformers.BertModel.from_pretrained(folder, local_files_only=True).state_dict()
    assert all(torch.equal(first.net.bert.state_dict()[key], stored[key]) for key in stored)
    assert first(*first.example_inputs(2)).shape == (2, 3)
    assert {p.dtype for p in first.parameters()} == {torch.float32}


def test_loading_is_silent_and_leaves_the_packages_own_settings(folder, capfd):
    logging = transformers.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load(folder)
    assert capfd.readouterr() == ("", "")  # a new classifier is no news
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_half_precision_weights_become_float32(copied):
    config = json.loads((copied / "config.json").read_text())
    model = transformers.BertModel.from_pretrained(copied, local_files_only=True).half()
    model.save_pretrained(copied)
    assert json.loads((copied / "config.json").read_text()) != config
    assert {p.dtype for p in load(copied).parameters()} == {torch.float32}


def test_models_without_sentence_numbers_are_fine(tmp_path):
    model = load(write_model(tmp_path / "roberta", "Roberta", type_vocab_size=1, pad_token_id=0))
    tokens, mask, types = model.example_inputs()
    model.eval()
    assert not model.takes_types
    assert torch.equal(model(tokens, mask, types), model(tokens, mask))


def test_its_tokenizer_pads_with_its_own_token(folder):
    tokenizer = read_tokenizer(pretrained_tokenizer(folder), length=10)
    pair = tokenizer.encode("a dog", "a man")
    assert pair.tokens[0] == "[CLS]"
    assert pair.tokens[-1] == "[PAD]"
    assert len(pair.ids) == 10


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", r"\*.safetensors"),
        ("tokenizer.json", "tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_file_is_an_error_that_says_what_is_expected(copied, name, missing):
    (copied / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {missing}.*expected"):
        load(copied)


def test_pickled_weights_are_not_read(copied):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model.bin"):
        load(copied)


def test_code_that_comes_with_a_model_is_not_run(copied):
    config = json.loads((copied / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config",
                          "AutoModelForSequenceClassification": "evil.Model"}  # fmt: skip
    config["model_type"] = "evil"
    (copied / "config.json").write_text(json.dumps(config))
    (copied / "evil.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load(copied)


def test_no_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_sizes_that_are_given_must_be_the_folders(folder):
    assert load(folder, dim=8, num_layers=1, vocab_size=300).num_classes == 3
    with pytest.raises(ValueError, match=r"model.options.dim \(768\) must be 8"):
        load(folder, dim=768)
    with pytest.raises(ValueError, match=r"data.sequence_length \(33\).*32"):
        load(folder, length=33)


def test_weights_that_are_not_the_configs_are_an_error(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(ValueError, match=r"bert.encoder.layer.1"):
        load(copied)
