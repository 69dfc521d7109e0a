"""The ResNet stem of the hybrids (R+Ti/16 ... R50+L/32): a feature map instead of pixels.

Section 3.1 of the paper, "Hybrid architecture". The ResNet is BiT's: convolutions with
standardised weights, GroupNorm instead of BatchNorm, the stride in the 3x3 convolution, and
paddings as TensorFlow's SAME. Facts from vit_jax `models_resnet.py` and `models_vit.py`.
"""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ResNetConfig
from vitreous.initialisers import lecun_normal_

Numerics = Literal["google", "timm"]


class StdConv2d(nn.Conv2d):
    """Convolution with weight standardisation: W' = (W - mean) / (std + 1e-5) per output channel.

    timm's hybrids divide by sqrt(std^2 + 1e-8) instead. Padding is SAME: the output has
    ceil(size / stride) cells, and an odd rest of the padding goes to the bottom and right.
    Source: Qiao et al. 2019; vit_jax `models_resnet.py`; timm `vision_transformer_hybrid.py`.
    """

    def __init__(self, numerics: Numerics, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, stride=stride, bias=False)
        self.numerics = numerics

    def standardised(self) -> Tensor:
        """W'."""
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        divisor = std + 1e-5 if self.numerics == "google" else (std.square() + 1e-8).sqrt()
        return (self.weight - mean) / divisor

    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.standardised(), stride=self.stride)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad (B, C, H, W) so that a convolution gives ceil(H / stride) x ceil(W / stride) cells."""
    pads: list[int] = []
    for size in (x.shape[-1], x.shape[-2]):  # F.pad counts from the last dimension
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


def group_norm(numerics: Numerics, channels: int) -> nn.GroupNorm:
    """32 groups, and eps 1e-6 as in flax, or 1e-5 as in timm."""
    return nn.GroupNorm(32, channels, eps=1e-6 if numerics == "google" else 1e-5)


class Bottleneck(nn.Module):
    """One residual unit: 1x1, 3x3 (with the stride), 1x1 to four times the width, ReLU after the sum."""

    def __init__(self, numerics: Numerics, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        conv, norm = partial(StdConv2d, numerics), partial(group_norm, numerics)
        out_channels = 4 * width
        self.conv1, self.norm1 = conv(in_channels, width, 1), norm(width)
        self.conv2, self.norm2 = conv(width, width, 3, stride), norm(width)
        self.conv3, self.norm3 = conv(width, out_channels, 1), norm(out_channels)
        self.shortcut: nn.Sequential | None = None
        if in_channels != out_channels or stride != 1:
            self.shortcut = nn.Sequential(conv(in_channels, out_channels, 1, stride), norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))  # (B, width, H, W)
        y = F.relu(self.norm2(self.conv2(y)))  # (B, width, H/stride, W/stride)
        y = self.norm3(self.conv3(y))  # (B, 4*width, H/stride, W/stride)
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNetStem(nn.Module):
    """(B, C, H, W) -> (B, `config.out_channels`, H / `config.stride`, W / `config.stride`)."""

    def __init__(self, config: ResNetConfig, in_channels: int) -> None:
        super().__init__()
        numerics = config.numerics
        self.root = StdConv2d(numerics, in_channels, config.width, 7, 2)
        self.root_norm = group_norm(numerics, config.width)
        self.stages = nn.ModuleList()
        channels = config.width
        for stage, units in enumerate(config.num_layers):
            width = config.width * 2**stage
            layers = []
            for unit in range(units):
                layers.append(Bottleneck(numerics, channels, width, stride=2 if stage and not unit else 1))
                channels = 4 * width
            self.stages.append(nn.Sequential(*layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The official initialisation: LeCun-normal convolutions, each unit's last scale zero."""
        for module in self.modules():
            if isinstance(module, StdConv2d):
                lecun_normal_(module.weight)
        for module in self.modules():
            if isinstance(module, Bottleneck):
                nn.init.zeros_(module.norm3.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.root_norm(self.root(images)))  # (B, width, H/2, W/2)
        x = F.max_pool2d(pad_same(x, 3, 2, value=float("-inf")), 3, 2)  # (B, width, H/4, W/4)
        for stage in self.stages:
            x = stage(x)
        return x
