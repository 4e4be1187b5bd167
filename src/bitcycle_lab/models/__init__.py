"""The networks of the papers and a few small ones, as plain float modules.

>>> model = build_model("resnet20", num_classes=100)
>>> model(*model.example_inputs(batch_size=2)).shape
torch.Size([2, 100])
>>> MODELS["resnet20"].description
'CIFAR ResNet-20: 3 basic blocks per group.'

To add a model, add one file to this folder and a test to `tests/bitcycle_lab/models`:

1. a subclass of `Model` that stores its options and implements `example_inputs`;
2. a builder with keyword-only options that all have defaults, decorated with `@register_model()`:
   a function, or the class itself with a name. The first line of its docstring is the description.

The first lookup imports every file of this folder. The contract tests build, run, copy, save,
restore and train every registered model. Import an optional package inside the class, and name its
extra: `register_model(extra="graph")`.
"""

from bitcycle_lab.models.base import MODELS, Model, ModelEntry, build_model, register_model

__all__ = ["MODELS", "Model", "ModelEntry", "build_model", "register_model"]
