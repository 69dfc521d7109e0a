"""The model as an ONNX graph: the equations of `model.py` once more, with standard operators.

Written out rather than traced: it takes a second instead of a minute, needs no example, looks the
same whichever PyTorch it comes from, and holds the forms that ONNX Runtime and OpenVINO fuse:
q, k and v as one matrix product each with the scale 1/sqrt(d) in the weight, GELU and LayerNorm as
one node each. What the weights alone decide is computed here: the patch embedding's bias and the
class token are in the positions. `export` compares every file with PyTorch before it is handed out.

Shapes in the comments as in `model.py`; R are the rows of a block: S tokens, or 1 in the last block.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.base.extras import need
from vitreous.hybrid import Bottleneck, ResNetStem, StdConv2d
from vitreous.model import MLP, Block, VisionTransformer

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET, IR_VERSION = 21, 10  # GELU since 20, GroupNormalization since 21
INPUT, OUTPUT = "images", "logits"
PAGE, CACHE_LINE = 1024, 16  # float32 numbers
Value = str | np.ndarray | Tensor | Sequence[int]


class Graph:
    """Nodes and constants as they are added; an operator returns the name of its result.

    They go straight into `model`: to put them together in the end would copy all weights twice more.
    """

    def __init__(self) -> None:
        onnx = require_onnx()
        self._make_node, self._type_of = onnx.helper.make_node, onnx.helper.np_dtype_to_tensor_dtype
        opset = onnx.helper.make_opsetid("", OPSET)
        self.model: ModelProto = onnx.ModelProto(ir_version=IR_VERSION, opset_import=[opset], producer_name="vitreous")
        self.model.graph.name = "vitreous"

    def constant(self, value: Value) -> str:
        """The name of a value: of an array, a tensor, or whole numbers (int64)."""
        if isinstance(value, str):
            return value
        if isinstance(value, Tensor):
            value = value.detach().float().cpu().numpy()
        array = np.ascontiguousarray(value if isinstance(value, np.ndarray) else np.array(value, np.int64))
        constants = self.model.graph.initializer
        name = f"constant_{len(constants)}"
        kind = self._type_of(array.dtype)
        constants.add(name=name, dims=array.shape, data_type=kind, raw_data=array.tobytes())
        return name

    def op(self, kind: str, *inputs: Value, name: str | None = None, **attributes: Any) -> str:
        """Add an operator; the name of its only result."""
        nodes = self.model.graph.node
        name = name or f"{kind}_{len(nodes)}"
        nodes.append(self._make_node(kind, [self.constant(x) for x in inputs], [name], name, **attributes))
        return name

    def linear(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """x W^T + b. Not `Gemm`, which takes matrices only."""
        y = self.op("MatMul", x, weight.t())
        return y if bias is None else self.op("Add", y, bias)

    def norm(self, x: str, norm: nn.LayerNorm) -> str:
        return self.op("LayerNormalization", x, norm.weight, norm.bias, axis=-1, epsilon=norm.eps)


def onnx_model(model: VisionTransformer, images: str = INPUT, graph: Graph | None = None) -> "ModelProto":
    """images (batch, C, H, W) float32 -> logits (batch, K), of any batch size.

    Args:
        model: its weights are copied, in float32.
        images: the name of the prepared images in `graph`.
        graph: what comes before, from `INPUT` to `images`.

    Raises:
        VitreousError: without the package `onnx`.
    """
    onnx = require_onnx()
    config, g = model.config, graph or Graph()
    x = images if model.stem is None else _stem(g, model.stem, images, config.image_size)  # (B, C', H', W')
    x = _embed(g, model, x)  # (B, S, D)
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        last = i == config.num_layers - 1
        x = _block(g, block, x, config.num_tokens, only_cls=last and config.classifier == "token")  # (B, R, D)
    x = _pool(g, model, x)  # (B, D)
    if model.pre_logits is not None:
        x = g.op("Tanh", g.linear(x, model.pre_logits.weight, model.pre_logits.bias))  # (B, R)
    if model.head is not None:
        x = g.linear(x, model.head.weight, model.head.bias)  # (B, K)
    g.op("Identity", x, name=OUTPUT)
    value, number = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = [value(INPUT, number.FLOAT, ["batch", config.in_channels, *config.image_size])]
    if images != INPUT:
        inputs = [value(INPUT, number.UINT8, ["batch", 3, "height", "width"])]
    width = config.num_classes or config.representation_size or config.hidden_size
    outputs = [value(OUTPUT, number.FLOAT, ["batch", width])]
    g.model.graph.input.extend(inputs)
    g.model.graph.output.extend(outputs)
    return g.model


def require_onnx() -> Any:
    """The package `onnx`, or the way to it."""
    need("onnx.helper", extra="onnx", for_="an ONNX graph")
    return need("onnx", extra="onnx", for_="an ONNX graph")


def _embed(g: Graph, model: VisionTransformer, x: str) -> str:
    """Equation 1; see `patchify` and `VisionTransformer.embed`."""
    (p1, p2), (rows, columns) = model.config.patch_size, model.config.grid
    projection = model.patch_embedding.projection
    channels = projection.in_channels
    x = g.op("Reshape", x, [-1, channels, rows, p1, columns, p2])  # (B, C, H/P1, P1, W/P2, P2)
    x = g.op("Transpose", x, perm=[0, 2, 4, 1, 3, 5])  # (B, H/P1, W/P2, C, P1, P2)
    x = g.op("Reshape", x, [-1, rows * columns, channels * p1 * p2])  # (B, N, C*P1*P2)
    x = g.linear(x, projection.weight.flatten(1), None)  # (B, N, D)
    prefix = model.config.prefix_tokens
    added = model.position_embedding.detach().float().clone()  # (1, S, D)
    added[:, prefix:] += projection.bias.float()  # type: ignore[union-attr]
    if model.cls_token is not None:
        added[:, :prefix] += model.cls_token.float()
        x = g.op("Pad", x, [0, prefix, 0, 0, 0, 0])  # (B, N+1, D)
    return g.op("Add", x, added)


def _block(g: Graph, block: Block, x: str, tokens: int, *, only_cls: bool) -> str:
    """Equations 2 and 3; with `only_cls`, of the first token alone."""

    def of_rows(x: str) -> str:
        return g.op("Slice", x, [0], [1], [1]) if only_cls else x  # (B, R, D)

    x, y = of_rows(x), g.norm(x, block.norm1)
    x = g.op("Add", x, _attention(g, block, of_rows(y), y, tokens, 1 if only_cls else tokens))
    (w1, b1, w2), mlp = _off_the_page(block.mlp), block.mlp
    y = g.linear(g.norm(x, block.norm2), w1, b1)  # (B, R, M)
    y = g.op("Gelu", y, approximate=mlp.gelu.approximate)
    return g.op("Add", x, g.linear(y, w2, mlp.fc2.bias))  # (B, R, D)


def _off_the_page(mlp: MLP) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of fc1, its biases and the weights of fc2, with a cache line of zeros behind an M of whole pages.

    Where a row of the hidden layer takes 4,096 bytes or a multiple, as B/16's 3,072 numbers do, the same places of all
    rows fall on the same few lines of the cache, and the second product is slower: by a quarter in ONNX Runtime on an
    AMD EPYC. The function stays: GELU(0) = 0.
    """
    w1, b1, w2 = mlp.fc1.weight, mlp.fc1.bias, mlp.fc2.weight
    if len(w1) % PAGE:
        return w1, b1, w2
    return F.pad(w1, (0, 0, 0, CACHE_LINE)), F.pad(b1, (0, CACHE_LINE)), F.pad(w2, (0, CACHE_LINE))


def _attention(g: Graph, block: Block, queries: str, x: str, tokens: int, rows: int) -> str:
    """softmax(q k^T / sqrt(d)) v, heads merged and projected."""
    attention = block.attention
    width, heads = attention.out.in_features, attention.num_heads
    d = width // heads
    (wq, wk, wv), (bq, bk, bv) = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
    scale = 1 / math.sqrt(d)

    def project(x: str, weight: Tensor, bias: Tensor, rows: int, perm: list[int]) -> str:
        x = g.op("Reshape", g.linear(x, weight, bias), [0, rows, heads, d])
        return g.op("Transpose", x, perm=perm)

    q = project(queries, wq * scale, bq * scale, rows, [0, 2, 1, 3])  # (B, h, R, d)
    k = project(x, wk, bk, tokens, [0, 2, 3, 1])  # (B, h, d, S)
    v = project(x, wv, bv, tokens, [0, 2, 1, 3])  # (B, h, S, d)
    y = g.op("MatMul", g.op("Softmax", g.op("MatMul", q, k), axis=-1), v)  # (B, h, R, d)
    y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), [0, rows, width])  # (B, R, D)
    return g.linear(y, attention.out.weight, attention.out.bias)


def _pool(g: Graph, model: VisionTransformer, x: str) -> str:
    """Equation 4; see `VisionTransformer.pool`."""
    config = model.config
    if config.classifier == "token":
        return g.norm(g.op("Squeeze", x, [1]), model.norm)  # (B, D)
    if config.prefix_tokens:
        x = g.op("Slice", x, [config.prefix_tokens], [config.num_tokens], [1])  # (B, N, D)
    if config.norm_after_pooling:
        return g.norm(_mean(g, x), model.norm)
    return _mean(g, g.norm(x, model.norm))


def _mean(g: Graph, x: str) -> str:
    return g.op("ReduceMean", x, [1], keepdims=0)  # (B, N, D) -> (B, D)


def _stem(g: Graph, stem: ResNetStem, x: str, size: tuple[int, int]) -> str:
    """The hybrid's feature map; see `ResNetStem.forward`."""

    def pads(kernel: int, stride: int) -> list[int]:
        """As `pad_same`: top, left, bottom, right."""
        total = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in size]
        return [n // 2 for n in total] + [n - n // 2 for n in total]

    def conv(x: str, layer: nn.Module) -> str:
        assert isinstance(layer, StdConv2d)
        kernel, stride = layer.kernel_size[0], layer.stride[0]
        return g.op("Conv", x, layer.standardised(), pads=pads(kernel, stride), strides=[stride, stride])

    def norm(x: str, layer: nn.Module) -> str:
        assert isinstance(layer, nn.GroupNorm)
        settings: dict[str, Any] = dict(num_groups=layer.num_groups, epsilon=layer.eps)
        return g.op("GroupNormalization", x, layer.weight, layer.bias, **settings)

    def unit(x: str, u: Bottleneck) -> str:
        nonlocal size
        y = g.op("Relu", norm(conv(x, u.conv1), u.norm1))
        y = g.op("Relu", norm(conv(y, u.conv2), u.norm2))
        if u.shortcut is not None:
            x = norm(conv(x, u.shortcut[0]), u.shortcut[1])
        size = _divided(size, u.conv2.stride[0])
        return g.op("Relu", g.op("Add", norm(conv(y, u.conv3), u.norm3), x))

    x = g.op("Relu", norm(conv(x, stem.root), stem.root_norm))
    size = _divided(size, 2)
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=pads(3, 2))  # pads count as -inf
    size = _divided(size, 2)
    for stage in stem.stages:
        assert isinstance(stage, nn.Sequential)
        for u in stage:
            assert isinstance(u, Bottleneck)
            x = unit(x, u)
    return x


def _divided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-size[0] // stride), -(-size[1] // stride)
