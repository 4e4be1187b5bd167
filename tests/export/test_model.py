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


def test_nothing_is_written_for_a_model_without_observed_ranges(tmp_path):
    model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    bc.set_precision(model, "w8a8")
    with pytest.raises(ValueError, match="never observed"):
        export_model(model, (torch.ones(2, 4),), to="torch", path=tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []
