"""MobileNetV2 for 32x32 images: the ImageNet network with three of its strides removed."""

from __future__ import annotations

import torch
from torch import nn

from bitcycle_lab.models.base import (
    ImageModel,
    global_average,
    init_convs,
    projection,
    register_model,
)

# expansion t, output channels c, repeats n, stride s of the first repeat
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise, linear 1x1 projection, with a shortcut whenever stride is 1.

    Unlike the ImageNet block: ReLU instead of ReLU6, a 1x1 shortcut where the channels differ, and
    an expansion convolution even when t = 1.
    """

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * in_channels
        self.conv1 = nn.Conv2d(in_channels, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(
            hidden, hidden, 3, stride=stride, padding=1, groups=hidden, bias=False
        )
        self.bn2 = nn.BatchNorm2d(hidden)
        self.conv3 = nn.Conv2d(hidden, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.has_shortcut = stride == 1
        self.downsample = projection(in_channels, out_channels, 1) if stride == 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, in, H, W) -> (N, out, H / stride, W / stride)."""
        out: torch.Tensor = self.relu(self.bn1(self.conv1(x)))  # (N, t in, H, W)
        out = self.relu(self.bn2(self.conv2(out)))  # (N, t in, H / stride, W / stride)
        out = self.bn3(self.conv3(out))
        if self.has_shortcut:
            out = out + (x if self.downsample is None else self.downsample(x))
        return out


@register_model("mobilenetv2")
class MobileNetV2(ImageModel):
    """MobileNetV2 for CIFAR: stride 8 in all, ReLU.

    conv3x3 to 32 channels, 17 inverted residuals, 1x1 to 1280, pool, FC.
    """

    def __init__(self, *, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, image_size=32)
        self.conv1 = nn.Conv2d(in_channels, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.relu = nn.ReLU()
        blocks = []
        channels = 32
        for expansion, out_channels, num_repeats, first_stride in STAGES:
            for repeat in range(num_repeats):
                stride = first_stride if repeat == 0 else 1
                blocks.append(InvertedResidual(channels, out_channels, expansion, stride))
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.conv2 = nn.Conv2d(channels, 1280, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(1280)
        self.fc = nn.Linear(1280, num_classes)
        init_convs(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, in_channels, H, W) -> logits (N, num_classes)."""
        x = self.relu(self.bn1(self.conv1(images)))  # (N, 32, H, W)
        x = self.blocks(x)  # (N, 320, H / 8, W / 8)
        x = self.relu(self.bn2(self.conv2(x)))  # (N, 1280, H / 8, W / 8)
        logits: torch.Tensor = self.fc(global_average(x))
        return logits
