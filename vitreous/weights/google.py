"""Google's `.npz` checkpoints: vit_jax and big_vision, as published and as today's code writes them.

Arrays have flat names with slashes. Dense kernels are (in, out), convolution kernels are
(row, column, in, out), and query, key and value keep their heads apart as (D, heads, d).
"""

import io
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.config import ResNetConfig, Size, ViTConfig
from vitreous.errors import WeightsError
from vitreous.files import atomic_write
from vitreous.preprocess import Preprocess
from vitreous.weights.checkpoint import Checkpoint, check_names, check_shapes, empty_model, join_qkv, split_qkv

Array = np.ndarray[Any, np.dtype[Any]]
PREFIXES = ("opt/target/", "params/img/", "params/", "target/")
MAX_DEFLATE_RATIO = 1032  # the most that a zip's deflate can shrink anything: more is a lie in the header


def read(path: Path, image_size: Size | None = None) -> Checkpoint:
    """Read a Google `.npz` file: the official names or the published ones, with any known prefix.

    The architecture is read off the arrays. The grid of positions is square, as the official
    code has it, unless `image_size` says which other grid the file was written for.

    Raises:
        WeightsError: not such a file, incomplete, with arrays too many, or of wrong shapes.
    """
    arrays = _canonical(read_npz(path), path)
    config = _infer_config(arrays, path, image_size)
    entries = {entry.google: entry for entry in _entries(config)}
    check_names(entries, arrays, str(path))
    expected = {name: entry.google_shape for name, entry in entries.items()}
    check_shapes(expected, {name: array.shape for name, array in arrays.items()}, str(path))
    tensors = {entry.ours: torch.from_numpy(entry.to_torch(arrays[name])) for name, entry in entries.items()}
    return Checkpoint(
        config=config,
        tensors=join_qkv({name: tensor.contiguous() for name, tensor in tensors.items()}),
        preprocess=Preprocess.preset("google", size=config.image_size),
        provenance={"family": "google", "file": path.name},
    )


def write(path: Path, config: ViTConfig, tensors: dict[str, Tensor]) -> None:
    """Write a Google `.npz` file in the published names, which vit_jax, big_vision and timm read.

    Args:
        path: where; written beside and renamed.
        config: of the model.
        tensors: its `state_dict()`.
    """
    ours = split_qkv(tensors)
    arrays = {
        _published(entry.google): np.ascontiguousarray(entry.to_google(ours[entry.ours].detach().float().cpu().numpy()))
        for entry in _entries(config)
    }
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an `.npz` file; nothing is unpickled, and no size is believed before it is checked."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {info.filename.removesuffix(".npy"): _read_npy(archive, info, path) for info in archive.infolist()}
    except WeightsError:
        raise
    except (zipfile.BadZipFile, EOFError, ValueError, OSError, NotImplementedError, SyntaxError) as error:
        raise WeightsError(f"{path} is not a whole .npz file ({error}): download or copy it again") from None
    except Exception as error:  # zlib.error and struct.error have no common base
        if type(error).__name__ != "error":
            raise
        raise WeightsError(f"{path} is not a whole .npz file ({error}): download or copy it again") from None


def _read_npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Array:
    if info.file_size > MAX_DEFLATE_RATIO * info.compress_size + 1024 or info.compress_size > path.stat().st_size:
        raise WeightsError(f"{path}: {info.filename} claims {info.file_size:,} bytes, more than the file can hold")
    with archive.open(info) as file:
        head = io.BytesIO(file.read(64 * 1024))
        version = np.lib.format.read_magic(head)
        if version not in ((1, 0), (2, 0)):
            raise WeightsError(f"{path}: {info.filename} has an array format {version} that is not known")
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(head)
        if dtype.hasobject:
            raise WeightsError(
                f"{path}: {info.filename} holds pickled Python objects, which can run code: not opened. "
                "Save the arrays as plain numbers, or the model as .safetensors"
            )
        if math.prod(shape) * dtype.itemsize != info.file_size - head.tell():
            raise WeightsError(f"{path}: {info.filename} claims shape {shape}, which is not what the file holds")
        data = head.read() + file.read()
    array = np.frombuffer(bytearray(data), dtype=dtype).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "V" and dtype.itemsize == 2:  # bfloat16, which numpy stores as two nameless bytes
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype.kind != "f":
        raise WeightsError(f"{path}: {info.filename} is of type {dtype}, not floating point")
    return array.astype(np.float32, copy=False)


@dataclass(frozen=True)
class _Entry:
    """One array: its name in our model and in Google's, and the way there and back."""

    ours: str
    google: str
    google_shape: tuple[int, ...]
    to_torch: Callable[[Array], Array]
    to_google: Callable[[Array], Array]


def _entries(config: ViTConfig) -> Iterator[_Entry]:
    shapes = {name: tuple(t.shape) for name, t in split_qkv(empty_model(config).state_dict()).items()}
    heads, d = config.num_heads, config.head_dim
    for ours, shape in shapes.items():
        google = _google_name(ours)
        if len(shape) == 4:  # a convolution: OIHW <-> HWIO
            yield _Entry(
                ours,
                google,
                (*shape[2:], shape[1], shape[0]),
                lambda a: a.transpose(3, 2, 0, 1),
                lambda a: a.transpose(2, 3, 1, 0),
            )
        elif re.search(r"attention\.(query|key|value)\.weight$", ours):  # (D, D) <-> (D, heads, d)
            yield _Entry(
                ours,
                google,
                (shape[1], heads, d),
                lambda a: a.reshape(a.shape[0], -1).T,
                lambda a: a.T.reshape(-1, heads, d),
            )
        elif re.search(r"attention\.(query|key|value)\.bias$", ours):  # (D,) <-> (heads, d)
            yield _Entry(ours, google, (heads, d), lambda a: a.reshape(-1), lambda a: a.reshape(heads, d))
        elif ours.endswith("attention.out.weight"):  # (D, D) <-> (heads, d, D)
            yield _Entry(
                ours,
                google,
                (heads, d, shape[0]),
                lambda a: a.reshape(-1, a.shape[-1]).T,
                lambda a: a.T.reshape(heads, d, -1),
            )
        elif len(shape) == 2:  # dense: (out, in) <-> (in, out)
            yield _Entry(ours, google, (shape[1], shape[0]), lambda a: a.T, lambda a: a.T)
        else:
            yield _Entry(ours, google, shape, lambda a: a, lambda a: a)


_RENAMES = (
    (r"^cls_token$", "cls"),
    (r"^position_embedding$", "Transformer/posembed_input/pos_embedding"),
    (r"^patch_embedding\.projection\.", "embedding/"),
    (r"^blocks\.(\d+)\.norm1\.", r"Transformer/encoderblock_\1/LayerNorm_0/"),
    (r"^blocks\.(\d+)\.norm2\.", r"Transformer/encoderblock_\1/LayerNorm_1/"),
    (r"^blocks\.(\d+)\.attention\.(\w+)\.", r"Transformer/encoderblock_\1/MultiHeadDotProductAttention_0/\2/"),
    (r"^blocks\.(\d+)\.mlp\.fc1\.", r"Transformer/encoderblock_\1/MlpBlock_0/Dense_0/"),
    (r"^blocks\.(\d+)\.mlp\.fc2\.", r"Transformer/encoderblock_\1/MlpBlock_0/Dense_1/"),
    (r"^norm\.", "Transformer/encoder_norm/"),
    (r"^pre_logits\.", "pre_logits/"),
    (r"^head\.", "head/"),
    (r"^stem\.root\.", "conv_root/"),
    (r"^stem\.root_norm\.", "gn_root/"),
)


def _google_name(ours: str) -> str:
    """Our name -> the name in today's vit_jax (Linen)."""
    leaf = ours.rsplit(".", 1)[-1]
    if unit := re.match(r"^stem\.stages\.(\d+)\.(\d+)\.(.+)\.(weight|bias)$", ours):
        stage, number, part = int(unit[1]) + 1, int(unit[2]) + 1, unit[3]
        part = {"shortcut.0": "conv_proj", "shortcut.1": "gn_proj"}.get(part, part.replace("norm", "gn"))
        google = f"block{stage}/unit{number}/{part}/{leaf}"
    else:
        for pattern, replacement in _RENAMES:
            google, hits = re.subn(pattern, replacement, ours)
            if hits:
                break
    is_norm = re.search(r"(LayerNorm_\d|encoder_norm|/gn[123]|gn_root|gn_proj)", google)
    return google.replace("/weight", "/scale" if is_norm else "/kernel")


# The published files number the parts of a block through; today's code numbers each kind from 0.
_PUBLISHED = {
    "LayerNorm_1/": "LayerNorm_2/",
    "MultiHeadDotProductAttention_0/": "MultiHeadDotProductAttention_1/",
    "MlpBlock_0/": "MlpBlock_3/",
}


def _published(name: str) -> str:
    for today, published in _PUBLISHED.items():
        name = name.replace(today, published)
    return name


def _canonical(arrays: dict[str, Array], path: Path) -> dict[str, Array]:
    """Undo what the history of the format left: prefixes, published names, scanned blocks, 4-D GroupNorm."""
    for prefix in PREFIXES:  # training states hold more than the weights: the optimiser's part is left out
        if any(name.startswith(prefix + "embedding/") for name in arrays):
            arrays = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            break
    out: dict[str, Array] = {}
    for name, array in arrays.items():
        for today, published in _PUBLISHED.items():
            name = name.replace(published, today)
        if "/gn" in f"/{name}":
            array = array.reshape(-1)  # GroupNorm of old files: (1, 1, 1, C)
        if "/encoderblock/" in name:  # big_vision's scan over blocks: a leading depth axis
            for i in range(array.shape[0]):
                out[name.replace("/encoderblock/", f"/encoderblock_{i}/")] = array[i]
        else:
            out[name] = array
    _add_class_position(out, path)
    return out


def _add_class_position(arrays: dict[str, Array], path: Path) -> None:
    """big_vision keeps positions for the patches alone at the top: CLS then has position zero."""
    if (positions := arrays.pop("pos_embedding", None)) is None:
        return
    if "cls" in arrays:
        positions = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    arrays.setdefault("Transformer/posembed_input/pos_embedding", positions)


def _infer_config(arrays: dict[str, Array], path: Path, image_size: Size | None) -> ViTConfig:
    def shape(name: str, ndim: int) -> tuple[int, ...]:
        if name not in arrays or arrays[name].ndim != ndim:
            found = arrays[name].shape if name in arrays else "nothing"
            raise WeightsError(
                f"{path} is not a Google ViT checkpoint: {name} of {ndim} dimensions expected, found {found}. "
                f"It holds: {', '.join(sorted(arrays)[:8])}{', ...' if len(arrays) > 8 else ''}"
            )
        return arrays[name].shape

    block = "Transformer/encoderblock_0"
    p1, p2, channels, width = shape("embedding/kernel", 4)
    _, heads, _ = shape(f"{block}/MultiHeadDotProductAttention_0/query/kernel", 3)
    _, mlp_dim = shape(f"{block}/MlpBlock_0/Dense_0/kernel", 2)
    rows = shape("Transformer/posembed_input/pos_embedding", 3)[1]
    resnet = _infer_resnet(arrays)
    prefix = 1 if "cls" in arrays else 0
    stride = (p1 * (resnet.stride if resnet else 1), p2 * (resnet.stride if resnet else 1))
    grid = _infer_grid(rows - prefix, stride, image_size, path)
    return ViTConfig(
        image_size=(grid[0] * stride[0], grid[1] * stride[1]),
        patch_size=(p1, p2),
        in_channels=shape("conv_root/kernel", 4)[2] if resnet else channels,
        hidden_size=width,
        num_layers=len({m[1] for name in arrays if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}),
        num_heads=heads,
        mlp_dim=mlp_dim,
        num_classes=shape("head/kernel", 2)[1] if "head/kernel" in arrays else 0,
        classifier="token" if prefix else "gap",
        representation_size=shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in arrays else None,
        resnet=resnet,
    )


def _infer_grid(patches: int, stride: Size, image_size: Size | None, path: Path) -> Size:
    side = math.isqrt(max(patches, 0))
    if patches > 0 and side * side == patches:
        return side, side
    if image_size is not None:
        grid = (image_size[0] // stride[0], image_size[1] // stride[1])
        if grid[0] * grid[1] == patches:
            return grid
    raise WeightsError(
        f"{path} holds positions for {patches} patches, which is no square grid: "
        "say the image size it was trained at with image_size=(height, width)"
    )


def _infer_resnet(arrays: dict[str, Array]) -> ResNetConfig | None:
    if "conv_root/kernel" not in arrays:
        return None
    units = [(int(m[1]), int(m[2])) for name in arrays if (m := re.match(r"block(\d+)/unit(\d+)/", name))]
    stages = max((stage for stage, _ in units), default=0)
    return ResNetConfig(
        num_layers=tuple(max(unit for s, unit in units if s == stage) for stage in range(1, stages + 1)),
        width_factor=arrays["conv_root/kernel"].shape[3] / 64,
    )
