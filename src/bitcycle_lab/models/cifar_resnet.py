"""CIFAR ResNets of depth 6n + 2, all of basic blocks (He et al. 2016, section 4.2)."""

from __future__ import annotations

import torch
from torch import nn

from bitcycle_lab.models.base import (
    BasicBlock,
    ImageModel,
    check_positive,
    global_average,
    init_convs,
    make_group,
    register_model,
)


class CifarResNet(ImageModel):
    """conv3x3, three groups of n = `num_blocks` basic blocks at 1, 2, 4 x `width`, pool, FC.

    Unlike the original, a shortcut whose shape changes is a 1x1 convolution with batch norm, as in
    the precision-training papers.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 16,
        image_size: int = 32,
    ) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        check_positive(num_blocks=num_blocks, width=width)
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = make_group(BasicBlock, width, width, num_blocks, stride=1)
        self.layer2 = make_group(BasicBlock, width, 2 * width, num_blocks, stride=2)
        self.layer3 = make_group(BasicBlock, 2 * width, 4 * width, num_blocks, stride=2)
        self.fc = nn.Linear(4 * width, num_classes)
        init_convs(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, in_channels, H, W) -> logits (N, num_classes)."""
        x = self.relu(self.bn1(self.conv1(images)))  # (N, width, H, W)
        x = self.layer3(self.layer2(self.layer1(x)))  # (N, 4 width, H / 4, W / 4)
        logits: torch.Tensor = self.fc(global_average(x))
        return logits


@register_model()
def resnet8(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-8: 1 basic block per group."""
    return CifarResNet(num_blocks=1, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet14(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-14: 2 basic blocks per group."""
    return CifarResNet(num_blocks=2, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet20(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-20: 3 basic blocks per group."""
    return CifarResNet(num_blocks=3, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet38(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-38: 6 basic blocks per group."""
    return CifarResNet(num_blocks=6, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet74(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-74: 12 basic blocks per group."""
    return CifarResNet(num_blocks=12, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet110(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-110: 18 basic blocks per group."""
    return CifarResNet(num_blocks=18, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet152(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-152: 25 basic blocks per group."""
    return CifarResNet(num_blocks=25, num_classes=num_classes, in_channels=in_channels, width=width)


@register_model()
def resnet164(*, num_classes: int = 10, in_channels: int = 3, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-164: 27 basic blocks per group."""
    return CifarResNet(num_blocks=27, num_classes=num_classes, in_channels=in_channels, width=width)
