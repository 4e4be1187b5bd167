"""The networks that are timed, with random weights and random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.matmul import MatMul
from bitcycle_lab.models import build_model
from bitcycle_lab.models.base import make_group
from bitcycle_lab.models.imagenet_resnet import Bottleneck


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A float model in its fastest memory format, one batch, and a loss.

    An input that requires a gradient stands for the output of earlier layers. skip: layers that
    stay float32.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[Any], Tensor]
    size: str
    full_size: str = ""  # the benchmark's; --quick has a smaller `size`
    float_model: nn.Module | None = None  # an equal model that is faster in float32
    skip: tuple[str, ...] = ()


WorkloadBuilder = Callable[[bool], Workload]  # takes is_quick
WORKLOADS: dict[str, WorkloadBuilder] = {}


def _register(name: str) -> Callable[[WorkloadBuilder], WorkloadBuilder]:
    def add(build: WorkloadBuilder) -> WorkloadBuilder:
        WORKLOADS[name] = build
        return build

    return add


@_register("resnet20-w16")
def resnet20_narrow(is_quick: bool) -> Workload:
    """CIFAR ResNet-20, 16 channels at first."""
    return _resnet(16, is_quick)


@_register("resnet20-w64")
def resnet20_wide(is_quick: bool) -> Workload:
    """CIFAR ResNet-20, 64 channels at first."""
    return _resnet(64, is_quick)


def _resnet(width: int, is_quick: bool) -> Workload:
    def describe(depth: int, batch: int, side: int) -> str:
        return f"ResNet-{depth} of width {width}, batch {batch}, {side}x{side}"

    full = (20, 64, 32)
    depth, batch, side = chosen = (8, 2, 8) if is_quick else full
    model = _channels_last(build_model(f"resnet{depth}", width=width))
    images = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    target = torch.randint(10, (batch,))
    return Workload(
        model=model,
        inputs=(images,),
        loss=lambda logits: F.cross_entropy(logits, target),
        size=describe(*chosen),
        full_size=describe(*full),
    )


@_register("mobilenetv2")
def mobilenetv2(is_quick: bool) -> Workload:
    """CIFAR MobileNetV2: depthwise and 1x1 convolutions."""
    return _images("mobilenetv2", "MobileNetV2", (8, 16) if is_quick else (64, 32), (64, 32))


@_register("digits")
def digits(is_quick: bool) -> Workload:
    """The small network of the recipe digits."""
    return _images("digits_resnet", "small ResNet-8", (8, 8) if is_quick else (64, 8), (64, 8), 1)


def _images(
    name: str, shown: str, chosen: tuple[int, int], full: tuple[int, int], channels: int = 3
) -> Workload:
    def describe(batch: int, side: int) -> str:
        return f"{shown}, batch {batch}, {side}x{side}"

    batch, side = chosen
    images = torch.randn(batch, channels, side, side)
    target = torch.randint(10, (batch,))
    return Workload(
        model=_channels_last(build_model(name)),
        inputs=(images.contiguous(memory_format=torch.channels_last),),
        loss=lambda logits: F.cross_entropy(logits, target),
        size=describe(*chosen),
        full_size=describe(*full),
    )


def _channels_last(model: nn.Module) -> nn.Module:
    """The memory format in which convolutions are fastest on a CPU."""
    result: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return result


@_register("bottleneck")
def bottleneck(is_quick: bool) -> Workload:
    """The first group of an ImageNet ResNet-50: three bottleneck blocks."""

    def describe(batch: int, side: int) -> str:
        return f"3 bottlenecks of ResNet-50, batch {batch}, {side}x{side}"

    full = (8, 56)
    batch, side = chosen = (1, 14) if is_quick else full
    model = _channels_last(make_group(Bottleneck, 64, 64, 3, stride=1))
    maps = torch.randn(batch, 64, side, side).contiguous(memory_format=torch.channels_last)
    return Workload(
        model=model,
        inputs=(maps.requires_grad_(),),
        loss=lambda out: out.square().mean(),
        size=describe(*chosen),
        full_size=describe(*full),
    )


class Block(nn.Module):
    """A pre-norm transformer block; attention by two MatMul modules, or by one fused call."""

    def __init__(self, width: int, *, heads: int = 8, is_fused: bool = False) -> None:
        super().__init__()
        self.heads, self.is_fused = heads, is_fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.qk, self.pv = MatMul(), MatMul()

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) -> (N, T, width)."""
        num, length, width = x.shape
        q, k, v = (
            part.view(num, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )  # each (N, heads, T, width / heads)
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = self.qk(q, k.transpose(-1, -2)) * (width // self.heads) ** -0.5
            mixed = self.pv(scores.softmax(-1), v)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


@_register("transformer-d512")
def transformer_512(is_quick: bool) -> Workload:
    """Two blocks of width 512."""
    return _transformer((64, 2, 32) if is_quick else (512, 8, 256), (512, 8, 256))


@_register("transformer-d1024")
def transformer_1024(is_quick: bool) -> Workload:
    """Two blocks of width 1024."""
    return _transformer((128, 2, 32) if is_quick else (1024, 8, 256), (1024, 8, 256))


def _transformer(chosen: tuple[int, int, int], full: tuple[int, int, int]) -> Workload:
    def describe(width: int, batch: int, length: int) -> str:
        return f"2 transformer blocks of width {width}, {batch}x{length} tokens"

    width, batch, length = chosen
    model = nn.Sequential(Block(width), Block(width))
    fused = nn.Sequential(Block(width, is_fused=True), Block(width, is_fused=True))
    fused.load_state_dict(model.state_dict())
    return Workload(
        model=model,
        float_model=fused,
        inputs=(torch.randn(batch, length, width).requires_grad_(),),
        loss=lambda out: out.square().mean(),
        size=describe(*chosen),
        full_size=describe(*full),
    )


@_register("lstm")
def lstm(is_quick: bool) -> Workload:
    """The medium language model of Zaremba et al.: 2 layers of 650 units, 10,000 words."""

    def describe(units: int, words: int, batch: int, length: int) -> str:
        return f"2 LSTM layers of {units} units, {words:,} words, batch {batch}, {length} steps"

    full = (650, 10_000, 20, 35)
    units, words, batch, length = chosen = (32, 100, 4, 8) if is_quick else full
    model = build_model(
        "lstm_lm", vocab_size=words, embedding_dim=units, hidden_dim=units, num_layers=2
    )
    tokens, target = torch.randint(words, (2, batch, length))
    return Workload(
        model=model,
        inputs=(tokens,),
        loss=lambda out: F.cross_entropy(out[0].flatten(0, 1), target.flatten()),
        size=describe(*chosen),
        full_size=describe(*full),
    )


@_register("gcn")
def gcn(is_quick: bool) -> Workload:
    """Two graph convolutions on a random graph of Cora's size."""

    def describe(nodes: int, edges: int, features: int) -> str:
        return f"2 graph convolutions, {nodes:,} nodes, {edges:,} edges, {features:,} features"

    full = (2708, 10_556, 1433)
    nodes, edges, features = chosen = (200, 800, 64) if is_quick else full
    model = build_model(
        "gcn", in_features=features, hidden_dim=64, num_classes=7, num_layers=2, dropout=0.5
    )
    target = torch.randint(7, (nodes,))
    return Workload(
        model=model,
        inputs=(torch.randn(nodes, features), torch.randint(nodes, (2, edges))),
        loss=lambda logits: F.cross_entropy(logits, target),
        size=describe(*chosen),
        full_size=describe(*full),
    )
