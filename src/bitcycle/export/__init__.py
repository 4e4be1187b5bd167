"""Trained models as files for elsewhere: ONNX, safetensors, or a plain torch state."""

from bitcycle.export.check import Check
from bitcycle.export.load import Exported, load_exported
from bitcycle.export.model import ExportedFile, export_model
from bitcycle.export.onnx_model import OnnxModel
from bitcycle.export.run import RunExport, export_run

__all__ = [
    "Check",
    "Exported",
    "ExportedFile",
    "OnnxModel",
    "RunExport",
    "export_model",
    "export_run",
    "load_exported",
]
