"""export_model."""

import pytest
import torch

import bitcycle as bc
from bitcycle.export import export_model
from tests.export.models import conv_net, images, ready


def export(path, **options):
    model = ready(conv_net(), images())
    return export_model(model, (images(),), path=path, **options)


def test_sizes_are_those_of_the_files(tmp_path):
    done = export(tmp_path / "a" / "model.safetensors", to="safetensors", codes=True)
    files = list((tmp_path / "a").iterdir())
    assert sorted(file.name for file in files) == ["model.json", "model.safetensors"]
    assert done.num_bytes == sum(file.stat().st_size for file in files)
    values = conv_net().state_dict().values()
    assert done.float_bytes == 4 * sum(value.numel() for value in values)


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        ({"to": "tflite"}, "model.onnx", "unknown export 'tflite'"),
        ({"to": "torch", "codes": True}, "model.pt", "option of safetensors, not of torch"),
        ({"to": "torch"}, "model.onnx", r"must end in \.pt"),
    ],
)
def test_what_does_not_fit_together_is_refused(options, name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_file_can_be_is_refused(tmp_path):
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(ValueError, match=r"model\.pt is a folder; name a file in it"):
        export(tmp_path / "model.pt", to="torch")
    (tmp_path / "notes").touch()
    with pytest.raises(ValueError, match="notes is a file, not a folder"):
        export(tmp_path / "notes" / "deeper" / "model.pt", to="torch")


def test_one_example_input_needs_no_tuple(tmp_path):
    path = tmp_path / "model.pt"
    done = export_model(ready(conv_net(), images()), images(), to="torch", path=path)
    assert done.num_bytes == path.stat().st_size


def test_nothing_is_written_for_a_model_without_observed_ranges(tmp_path):
    model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    bc.set_precision(model, "w8a8")
    with pytest.raises(ValueError, match="never observed"):
        export_model(model, (torch.ones(2, 4),), to="torch", path=tmp_path / "a" / "model.pt")
    assert list(tmp_path.iterdir()) == []  # no folder either
