"""Export trained models to ONNX, safetensors, or a torch state dict."""

from bitcycle.export.model import Exported, ExportedFile, export_model, load_exported
from bitcycle.export.onnx_file import OnnxModel
from bitcycle.export.run import Check, RunExport, export_run

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
