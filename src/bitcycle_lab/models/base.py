"""The base classes of models, their registry, and the blocks that several networks share.

`Model` is any model, `ImageModel` an image classifier, `LanguageModel` a word-level language model.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from bitcycle.registry import Registry, unknown_name

Builder = TypeVar("Builder", bound=Callable[..., "Model"])


class Model(nn.Module):
    """A module with example inputs, so that it can be traced and tested by name."""

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """Random arguments for `forward`: `model(*model.example_inputs())`.

        `batch_size` counts samples: images, sequences or nodes. The values depend on `seed` only:
        they are drawn on the CPU by a generator of their own.
        """
        raise NotImplementedError(f"{type(self).__name__} must define example_inputs")


class ImageModel(Model):
    """A classifier of square images: (N, in_channels, image_size, image_size) -> (N, classes)."""

    def __init__(self, *, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.image_size = image_size  # of example_inputs; most networks take any size

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """A batch of normal noise, like normalized images."""
        shape = (batch_size, self.in_channels, self.image_size, self.image_size)
        images = torch.randn(shape, generator=cpu_generator(seed), device="cpu")
        return (images.to(device),)


class LanguageModel(Model):
    """Predicts each next token: tokens (N, T) in 0..vocab_size - 1 -> logits (N, T, vocab_size)."""

    def __init__(self, *, vocab_size: int, example_length: int) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, example_length=example_length)
        self.vocab_size = vocab_size
        self.example_length = example_length  # of example_inputs; sequences may have any length

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """A batch of uniform tokens (batch_size, example_length)."""
        shape = (batch_size, self.example_length)
        tokens = torch.randint(self.vocab_size, shape, generator=cpu_generator(seed), device="cpu")
        return (tokens.to(device),)


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A registered model: its builder and what `bitcycle ls models` prints."""

    name: str
    build: Callable[..., Model]
    family: str  # the file that defines it
    description: str
    extra: str | None = None  # the optional dependency that it needs

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """Option names and their defaults.

        >>> dict(MODELS["resnet20"].options)
        {'num_classes': 10, 'in_channels': 3, 'width': 16}
        """
        parameters = inspect.signature(self.build).parameters.values()
        return MappingProxyType({each.name: each.default for each in parameters})


MODELS: Registry[ModelEntry] = Registry("model", "bitcycle_lab.models")


def register_model(
    name: str | None = None, *, extra: str | None = None
) -> Callable[[Builder], Builder]:
    """Register a builder, which is a function or the model's class; returns it unchanged.

    name: by default the name of the function.
    """

    def add(build: Builder) -> Builder:
        own_name = name or build.__name__
        for parameter in inspect.signature(build).parameters.values():
            if (
                parameter.kind is not inspect.Parameter.KEYWORD_ONLY
                or parameter.default is inspect.Parameter.empty
            ):
                raise ValueError(
                    f"option {parameter.name!r} of model {own_name!r} must be keyword-only and "
                    "have a default"
                )
        entry = ModelEntry(
            name=own_name,
            build=build,
            family=build.__module__.rpartition(".")[2],
            description=(inspect.getdoc(build) or "").partition("\n")[0],  # empty under python -OO
            extra=extra,
        )
        MODELS.register(own_name)(entry)
        return build

    return add


def build_model(name: str, **options: Any) -> Model:
    """Build a model by name; its weights are drawn from torch's global random state.

    >>> build_model("resnet20", num_class=100)
    Traceback (most recent call last):
    ...
    ValueError: unknown option of resnet20 'num_class'; did you mean 'num_classes'? known: \
in_channels, num_classes, width
    """
    entry = MODELS[name]
    for option in options:
        if option not in entry.options:
            raise unknown_name(f"option of {name}", option, entry.options)
    return entry.build(**options)


def check_positive(**sizes: int) -> None:
    """Raise ValueError unless every size is an integer of at least 1.

    >>> check_positive(num_classes=10, width=0)
    Traceback (most recent call last):
    ...
    ValueError: width must be an integer >= 1, got 0
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {size!r}")


def cpu_generator(seed: int) -> torch.Generator:
    """A seeded generator on the CPU, even inside `with torch.device(...)`."""
    return torch.Generator(device="cpu").manual_seed(seed)


def init_convs(model: nn.Module) -> None:
    """Draw every convolution from N(0, sqrt(2 / (k^2 out))) and zero its bias (He et al. 2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            k2 = module.kernel_size[0] * module.kernel_size[1]
            nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / (k2 * module.out_channels)))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def global_average(x: torch.Tensor) -> torch.Tensor:
    """(N, C, H, W) -> (N, C)."""
    return x.mean(dim=(2, 3))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """The shortcut of a residual block: None (identity), or 1x1 conv + BN if the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class BasicBlock(nn.Module):
    """relu(bn(conv3x3(relu(bn(conv3x3(x))))) + shortcut(x)), with torchvision's names."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = projection(in_channels, channels, stride)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, in, H, W) -> (N, channels, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        total: torch.Tensor = self.relu(self.bn2(self.conv2(out)) + shortcut)
        return total


class BlockType(Protocol):
    """A class of residual blocks."""

    @property
    def expansion(self) -> int:
        """Output channels per channel."""

    def __call__(self, in_channels: int, channels: int, stride: int) -> nn.Module:
        """Return a block from `in_channels` to `expansion` times `channels`."""


def make_group(
    block: BlockType, in_channels: int, channels: int, num_blocks: int, *, stride: int
) -> nn.Sequential:
    """`num_blocks` blocks, the first of which changes channels and resolution."""
    first = block(in_channels, channels, stride)
    rest = [block(block.expansion * channels, channels, 1) for _ in range(num_blocks - 1)]
    return nn.Sequential(first, *rest)
