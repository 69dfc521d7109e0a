"""`Preprocess` as ONNX operators: pixels of any size in, what the model takes out."""

from typing import Any

from vitreous.base.errors import ConfigError
from vitreous.config import Size
from vitreous.engine.graph import INPUT, Graph
from vitreous.pictures.preprocess import Preprocess

MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def prepare(g: Graph, preprocess: Preprocess) -> str:
    """(B, 3, H, W) uint8, any H and W -> (B, C, h, w) float32: (resize(x)[centre] / 255 - mean) / std.

    Raises:
        ConfigError: for an interpolation that ONNX has no operator for.
    """
    if preprocess.interpolation not in MODES or (preprocess.antialias and preprocess.interpolation == "nearest"):
        raise ConfigError(
            f"ONNX cannot resize with {preprocess.interpolation!r} and antialias={preprocess.antialias}: "
            "leave the preprocessing in the metadata"
        )
    import numpy as np
    from onnx import TensorProto

    x = _grey(g, INPUT) if len(preprocess.mean) == 1 else INPUT
    if not preprocess.antialias:  # interpolated in float32; with antialias on 8-bit pixels, as Pillow does
        x = g.op("Cast", x, to=TensorProto.FLOAT)
    x = _resize(g, x, preprocess)
    x = _crop(g, x, preprocess.size)
    x = g.op("Cast", x, to=TensorProto.FLOAT)
    mean, std = (np.array(v, np.float32).reshape(1, -1, 1, 1) for v in (preprocess.mean, preprocess.std))
    return g.op("Div", g.op("Sub", g.op("Div", x, np.array(255, np.float32)), mean), std)


def _resize(g: Graph, x: str, preprocess: Preprocess) -> str:
    settings: dict[str, Any] = dict(
        mode=MODES[preprocess.interpolation],
        coordinate_transformation_mode="half_pixel",
        nearest_mode="round_prefer_ceil",
        cubic_coeff_a=-0.5,
        exclude_outside=int(preprocess.antialias or preprocess.interpolation == "bicubic"),
        antialias=int(preprocess.antialias),
    )
    h, w = preprocess._resized
    if preprocess.resize == "squash":
        return g.op("Resize", x, "", "", [h, w], axes=[2, 3], **settings)
    # `Preprocess._new_size`: one side fits, the other follows.
    height, width = (g.op("Slice", g.op("Shape", INPUT), [axis], [axis + 1]) for axis in (2, 3))
    wide = g.op("GreaterOrEqual", g.op("Mul", width, [h]), g.op("Mul", height, [w]))
    rounding = "Floor" if h == w else "Round"

    def follow(fixed: int, across: str, along: str, least: int) -> str:
        return g.op("Max", _whole(g, rounding, g.op("Mul", along, [fixed]), across), [least])

    landscape = g.op("Concat", [h], follow(h, height, width, w), axis=0)
    portrait = g.op("Concat", follow(w, width, height, h), [w], axis=0)
    return g.op("Resize", x, "", "", g.op("Where", wide, landscape, portrait), axes=[2, 3], **settings)


def _crop(g: Graph, x: str, size: Size) -> str:
    spare = g.op("Sub", g.op("Slice", g.op("Shape", x), [2], [4]), list(size))
    start = _whole(g, "Round", spare, g.constant([2]))  # halves to even, as `Preprocess` has it
    return g.op("Slice", x, start, g.op("Add", start, list(size)), [2, 3])


def _whole(g: Graph, rounding: str, dividend: str, divisor: str) -> str:
    """A quotient of whole numbers, rounded."""
    from onnx import TensorProto

    a, b = (g.op("Cast", x, to=TensorProto.DOUBLE) for x in (dividend, divisor))
    return g.op("Cast", g.op(rounding, g.op("Div", a, b)), to=TensorProto.INT64)


def _grey(g: Graph, x: str) -> str:
    """(B, 3, H, W) uint8 -> (B, 1, H, W) uint8, the luminance as Pillow rounds it."""
    import numpy as np
    from onnx import TensorProto

    weight = np.array([19595, 38470, 7471], np.int32).reshape(1, 3, 1, 1)  # ITU-R BT.601, in 1/65536
    total = g.op("ReduceSum", g.op("Mul", g.op("Cast", x, to=TensorProto.INT32), weight), [1], keepdims=1)
    shifted = g.op("Div", g.op("Add", total, np.array(0x8000, np.int32)), np.array(0x10000, np.int32))
    return g.op("Cast", shifted, to=TensorProto.UINT8)
