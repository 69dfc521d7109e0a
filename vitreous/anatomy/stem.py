"""What the ResNet stem of a hybrid costs, convolution by convolution.

The letters are those of `cost.py`: (H, W) pixels of C channels, w channels of the root.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vitreous.anatomy.parts import STATISTIC, Parts
from vitreous.config import ResNetConfig, Size, ViTConfig

GROUPS = 32  # of a GroupNorm, two statistics each
INDEX = 8  # max pooling keeps int64 indices


@dataclass(frozen=True)
class _Convolution:
    """A convolution of the stem (SAME padding, no bias, standardised kernel) and the GroupNorm after it."""

    inputs: int  # channels
    outputs: int
    kernel: int
    stride: int
    size: Size  # (rows, columns) of the output
    relu: bool = True  # a ReLU follows; not on a shortcut

    @property
    def weights(self) -> int:
        return self.kernel**2 * self.inputs * self.outputs

    @property
    def cells(self) -> int:
        return self.size[0] * self.size[1]

    @property
    def padded(self) -> int:
        """Elements of the padded copy of the input; a 1x1 convolution needs none."""
        height, width = ((n - 1) * self.stride + self.kernel for n in self.size)
        return self.inputs * height * width if self.kernel > 1 else 0


def _stem_stages(config: ViTConfig, resnet: ResNetConfig) -> Iterator[list[_Convolution]]:
    """The root's convolution, then those of every stage."""
    channels, (height, width) = resnet.width, config.image_size
    yield [_Convolution(config.in_channels, channels, 7, 2, (height // 2, width // 2))]
    for stage, units in enumerate(resnet.num_layers):
        w, size = resnet.width * 2**stage, (height // 2 ** (stage + 2), width // 2 ** (stage + 2))
        convolutions = []
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            convolutions += [
                _Convolution(channels, w, 1, 1, (size[0] * stride, size[1] * stride)),
                _Convolution(w, w, 3, stride, size),
                _Convolution(w, 4 * w, 1, 1, size),
            ]
            if not unit:
                convolutions.append(_Convolution(channels, 4 * w, 1, stride, size, relu=False))
            channels = 4 * w
        yield convolutions


def count_stem(parts: Parts, config: ViTConfig, resnet: ResNetConfig) -> None:
    """Count the root and each stage, convolution by convolution; the texts are the closed forms of these sums.

    A unit of width w is a 1x1, a 3x3 and a 1x1 convolution to 4·w channels. In units of w² times the cells of its
    stage, one unit after the first costs 4 + 9 + 4 = 17 (its input has 4·w channels). A stage's first unit has a
    shortcut besides: after the root (w channels in) it costs 1 + 9 + 4 + 4 = 18; later (2·w channels in) it has
    2 + 9 + 4 + 8 = 23 parameters, and 8 + 9 + 4 + 8 = 29 MACs, as its first convolution runs before the stride, on
    four times the cells. Each norm has two parameters a channel: 2·(w + w + 4·w) = 12·w, with a shortcut's
    2·4·w more 20·w. Every stage has twice the width and a quarter of the cells of the one before, so that w² times
    the cells stays w²·H·W/16 of the root's w.
    """

    def add(name: str, formula: str, params: str, convolutions: list[_Convolution], kept: int, indices: int) -> None:
        parts.add(
            name,
            macs=(formula, sum(c.cells * c.weights for c in convolutions)),
            params=(params, sum(c.weights + 2 * c.outputs for c in convolutions)),
            kept=kept + sum(c.padded + (1 + c.relu) * c.outputs * c.cells for c in convolutions),
            kept_bytes=len(convolutions) * 2 * GROUPS * STATISTIC + indices * INDEX,
            # Standardising keeps the centred kernel, the standardised one, and the deviations twice.
            once=sum(2 * c.weights + 2 * c.outputs for c in convolutions),
        )

    (root,), *stages = _stem_stages(config, resnet)
    pooled = root.outputs * root.cells // 4
    kept = _pool_input(config, resnet)
    if stages:
        kept += pooled  # otherwise only its patches are kept, as copies
    add("stem root", "49·C·w·H·W/4", "49·C·w + 2·w", [root], kept, pooled)
    for i, convolutions in enumerate(stages):
        more, width = resnet.num_layers[i] - 1, f"({2**i}·w)" if i else "w"  # units after the first; their channels
        macs, params = (18, 18) if i == 0 else (29, 23)
        add(
            f"stem stage {i + 1}",
            f"({macs} + 17·{more})·w²·H·W/16",
            f"({params} + 17·{more})·{width}² + (20 + 12·{more})·{width}",
            convolutions,
            kept=0,
            indices=0,
        )


def _pool_input(config: ViTConfig, resnet: ResNetConfig) -> int:
    """Elements of the root's output, padded for the 3x3 max pooling."""
    height, width = config.image_size
    return resnet.width * (height // 2 + 1) * (width // 2 + 1)


def stem_moments(config: ViTConfig, resnet: ResNetConfig, size: int) -> Iterator[int]:
    """Bytes beside the image at the full moments of the stem: its root, its pooling, the end of every unit."""
    (root,), *stages = _stem_stages(config, resnet)
    output, statistics = root.outputs * root.cells, 2 * GROUPS * STATISTIC
    yield size * (root.padded + output)
    yield size * 2 * output + statistics  # GroupNorm and its input
    yield size * (output + _pool_input(config, resnet) + output // 4) + output // 4 * INDEX
    entering = output // 4
    for convolutions in stages:
        leaving = convolutions[-1].outputs * convolutions[-1].cells
        # The first unit: its input, the branch, the shortcut before and after its norm.
        yield size * (entering + 3 * leaving) + statistics
        # A later one: the stage's input, its own, the branch, the sum and its ReLU.
        if sum(c.kernel == 3 for c in convolutions) > 1:
            yield size * (entering + 4 * leaving)
        entering = leaving
