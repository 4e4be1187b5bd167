"""What the image classifiers share: example batches, initialisation, the basic residual block."""

from __future__ import annotations

import math

import torch
from torch import nn

from bitcycle.models.base import Model, check_positive, cpu_generator


class ImageModel(Model):
    """A classifier of square images: (N, in_channels, image_size, image_size) -> (N, classes)."""

    def __init__(self, *, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        self.num_classes = num_classes
        self.in_channels = in_channels
        self.image_size = image_size  # of the examples; most nets take any size

    def example_inputs(
        self, batch_size: int = 2, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """One batch of normal noise, as normalized images are."""
        shape = (batch_size, self.in_channels, self.image_size, self.image_size)
        images = torch.randn(shape, generator=cpu_generator(seed), device="cpu")
        return (images.to(device),)


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
    """A residual block's shortcut: None (identity), or 1x1 conv + BN where the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
        nn.BatchNorm2d(out_channels),
    )


class BasicBlock(nn.Module):
    """relu(bn(conv3x3(relu(bn(conv3x3(x))))) + shortcut(x)), named as torchvision names it."""

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
