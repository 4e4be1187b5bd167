"""Export trained models to ONNX, safetensors, or a torch state dict."""

from bitcycle.export.model import Exported, ExportedFile, export_model, load_exported
from bitcycle.export.onnx_file import OnnxModel

__all__ = [
    "Exported",
    "ExportedFile",
    "OnnxModel",
    "export_model",
    "load_exported",
]
