"""ONNX files as modules."""

import onnx
import pytest
import torch
from torch import nn

from bitcycle.export.onnx_model import OnnxModel


def test_a_file_that_is_no_model_is_a_clear_error(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ValueError, match="ONNX Runtime cannot read"):
        OnnxModel(path)


def test_a_file_that_is_not_ours_is_refused(tmp_path):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [value], [other]
    )
    opset = onnx.helper.make_opsetid("", 21)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "m.onnx"
    )
    with pytest.raises(ValueError, match="is not an exported model"):
        OnnxModel(tmp_path / "m.onnx")


@pytest.mark.slow
def test_it_takes_tensors_and_tells_about_itself(tmp_path):
    from bitcycle.export import export_model

    model = nn.Linear(4, 2)
    export_model(
        model, (torch.ones(2, 4),), to="onnx", path=tmp_path / "m.onnx", source={"run": "mine"}
    )
    loaded = OnnxModel(tmp_path / "m.onnx")
    x = torch.randn(5, 4, requires_grad=True)
    torch.testing.assert_close(loaded(x), model(x).detach())
    assert loaded.about["run"] == "mine"
