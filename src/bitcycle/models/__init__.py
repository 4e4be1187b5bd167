"""The papers' networks and a few small ones: plain float modules that know nothing of bits.

>>> model = build_model("resnet20", num_classes=100)
>>> model(*model.example_inputs(batch_size=2)).shape
torch.Size([2, 100])
>>> MODELS["resnet20"].description
'CIFAR ResNet-20: 3 basic blocks per group.'

To add a model, drop one file into this folder, and a test beside the others in `tests/models`:

1. a class derived from `Model` that stores what it was built with and answers `example_inputs`;
2. a builder with keyword-only options that all have defaults, decorated with `@register_model()`.
   Its name is the model's name, its docstring's first line the description, its file the family.

Nothing else needs to be told: the first lookup imports every file here, and the contract tests
build, run, copy, save, restore and train whatever is registered. A package that is not part of
the core (`register_model(extra="graph")`) is imported inside the class, when it is built.
"""

from bitcycle.models.base import MODELS, Model, ModelEntry, build_model, register_model

__all__ = ["MODELS", "Model", "ModelEntry", "build_model", "register_model"]
