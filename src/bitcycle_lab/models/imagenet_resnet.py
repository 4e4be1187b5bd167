"""ImageNet ResNet-18/34/50 with torchvision's layout and state-dict keys, so its weights load."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bitcycle_lab.models.base import (
    BasicBlock,
    BlockType,
    ImageModel,
    global_average,
    init_convs,
    make_group,
    projection,
    register_model,
)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions; the stride is on the 3x3 (He et al. had it on the first 1x1)."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = projection(in_channels, out_channels, stride)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, in, H, W) -> (N, 4 channels, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        total: torch.Tensor = self.relu(self.bn3(self.conv3(out)) + shortcut)
        return total


class ImageNetResNet(ImageModel):
    """conv7x7 and max pool (stride 4 in all), four groups at 64, 128, 256, 512, pool, FC."""

    def __init__(
        self,
        block: BlockType,
        num_blocks: tuple[int, int, int, int],
        *,
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, image_size=224)
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.layer1 = make_group(block, 64, 64, num_blocks[0], stride=1)
        self.layer2 = make_group(block, 64 * block.expansion, 128, num_blocks[1], stride=2)
        self.layer3 = make_group(block, 128 * block.expansion, 256, num_blocks[2], stride=2)
        self.layer4 = make_group(block, 256 * block.expansion, 512, num_blocks[3], stride=2)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        init_convs(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, in_channels, H, W) -> logits (N, num_classes)."""
        x = self.relu(self.bn1(self.conv1(images)))  # (N, 64, H / 2, W / 2)
        x = F.max_pool2d(x, 3, stride=2, padding=1)  # (N, 64, H / 4, W / 4)
        x = self.layer2(self.layer1(x))  # (N, 128 expansion, H / 8, W / 8)
        x = self.layer4(self.layer3(x))  # (N, 512 expansion, H / 32, W / 32)
        logits: torch.Tensor = self.fc(global_average(x))
        return logits


@register_model()
def imagenet_resnet18(*, num_classes: int = 1000, in_channels: int = 3) -> ImageNetResNet:
    """ImageNet ResNet-18: basic blocks 2, 2, 2, 2."""
    return ImageNetResNet(
        BasicBlock, (2, 2, 2, 2), num_classes=num_classes, in_channels=in_channels
    )


@register_model()
def imagenet_resnet34(*, num_classes: int = 1000, in_channels: int = 3) -> ImageNetResNet:
    """ImageNet ResNet-34: basic blocks 3, 4, 6, 3."""
    return ImageNetResNet(
        BasicBlock, (3, 4, 6, 3), num_classes=num_classes, in_channels=in_channels
    )


@register_model()
def imagenet_resnet50(*, num_classes: int = 1000, in_channels: int = 3) -> ImageNetResNet:
    """ImageNet ResNet-50: bottlenecks 3, 4, 6, 3, stride on the 3x3."""
    return ImageNetResNet(
        Bottleneck, (3, 4, 6, 3), num_classes=num_classes, in_channels=in_channels
    )
