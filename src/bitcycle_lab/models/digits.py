"""Small networks for the 1x8x8 digits, which train in seconds on one core."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from bitcycle_lab.models.base import ImageModel, check_positive, init_convs, register_model
from bitcycle_lab.models.cifar_resnet import CifarResNet


@register_model("digits_mlp")
class DigitsMLP(ImageModel):
    """MLP for 8x8 digits: 64-64-64-10, no batch norm."""

    def __init__(
        self, *, num_classes: int = 10, in_channels: int = 1, image_size: int = 8, width: int = 64
    ) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        check_positive(width=width)
        self.fc1 = nn.Linear(in_channels * image_size * image_size, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, in_channels, H, W) -> logits (N, num_classes)."""
        x = images.flatten(1)  # (N, in_channels H W)
        x = F.relu(self.fc2(F.relu(self.fc1(x))))  # (N, width)
        logits: torch.Tensor = self.fc3(x)
        return logits


@register_model("digits_convnet")
class DigitsConvNet(ImageModel):
    """Convnet for 8x8 digits: three 3x3 convolutions, no batch norm."""

    def __init__(
        self, *, num_classes: int = 10, in_channels: int = 1, image_size: int = 8, width: int = 16
    ) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        check_positive(width=width)
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        final_size = (image_size + 3) // 4  # two strides of 2, each rounding up
        self.fc = nn.Linear(2 * width * final_size * final_size, num_classes)
        init_convs(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(N, in_channels, H, W) -> logits (N, num_classes)."""
        x = F.relu(self.conv1(images))  # (N, width, H, W)
        x = F.relu(self.conv2(x))  # (N, 2 width, H / 2, W / 2)
        x = F.relu(self.conv3(x))  # (N, 2 width, H / 4, W / 4)
        logits: torch.Tensor = self.fc(x.flatten(1))
        return logits


@register_model()
def digits_resnet(*, num_classes: int = 10, in_channels: int = 1, width: int = 8) -> CifarResNet:
    """Residual net for 8x8 digits: a CIFAR ResNet-8 of half the width."""
    return CifarResNet(
        num_blocks=1,
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        image_size=8,
    )
