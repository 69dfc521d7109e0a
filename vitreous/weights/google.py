"""Google's `.npz` checkpoints: vit_jax and big_vision, as published and as today's code writes them.

Arrays have flat names with slashes. Dense kernels are (in, out), convolution kernels are
(row, column, in, out), and query, key and value keep their heads apart as (D, heads, d).
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.base.files import atomic_write
from vitreous.config import Size, ViTConfig
from vitreous.pictures.preprocess import Preprocess
from vitreous.skeleton import empty_model
from vitreous.weights.architecture import Sizes, infer_config
from vitreous.weights.checkpoint import Checkpoint, check_names, check_shapes, split_qkv
from vitreous.weights.family import Family, constants, never_kept, without_description
from vitreous.weights.npz import Member, NpzReader, NpzWriter

Shape = tuple[int, ...]
POSITIONS = "Transformer/posembed_input/pos_embedding"
PREFIXES = ("", "opt/target/", "params/img/", "params/", "target/")  # whole training states, image-text models
COMMENT = "vitreous: images of {}x{} pixels"

# What published files of kindred models hold, and why this model cannot take it.
FOREIGN = (
    (r"(^|/)MAPHead_\d+/", "it pools with an attention head (MAP), as SigLIP does, not with CLS or the mean"),
    (r"(^|/)MixerBlock_\d+/", "it is an MLP-Mixer, which has no attention"),
    (r"(^|/)(root_block|block1/unit01)/", "it is a BiT ResNet, which has no attention"),
    (r"(^|/)encoderblock(_\d+)?/Moe", "it has a mixture of experts in place of an MLP"),
)


def read(path: Path, image_size: Size | None = None) -> Checkpoint:
    """Read a Google `.npz` file: the official names or the published ones, with any known prefix.

    The architecture is read off the arrays. The grid of positions is square, as the official
    code has it, unless the file was written by `write` and says otherwise, or the number of
    patches is no square and `image_size` fits it. Besides the model's own tensors, one array
    is held at a time.

    Raises:
        WeightsError: not such a file, incomplete, with arrays too many, or of wrong shapes or types.
    """
    with NpzReader(path) as archive:
        sources = _sources(archive.members, path)
        shapes = {name: source.shape for name, source in sources.items()}
        stated = _stated_size(archive.comment)
        config = infer_config(_sizes(shapes, path), str(path), {}, stated=[stated] if stated else [], asked=image_size)
        layouts = {layout.google: layout for layout in _layouts(config)}
        check_names(layouts, sources, str(path))
        check_shapes({name: layout.shape for name, layout in layouts.items()}, shapes, str(path))
        archive.check_floats({source.member for source in sources.values()})
        tensors = _read_tensors(archive, sources, layouts, config)
    preprocess = Preprocess.preset("google", size=config.image_size)
    if config.in_channels == 1:
        preprocess = preprocess.replace(mean=(0.5,), std=(0.5,))
    provenance = {"family": "google", "file": path.name, "tensors": f"{len(layouts)} of {len(layouts)} tensors"}
    return Checkpoint(config, tensors, preprocess, provenance=provenance)


def write(path: Path, config: ViTConfig, tensors: dict[str, Tensor]) -> None:
    """Write a Google `.npz` file in the published names, which vit_jax, big_vision and timm read.

    The format holds float32 arrays and nothing else: no class names and no preprocessing. A grid
    that is not square is told to `read` in the comment of the zip, which others pass over. One
    array is held at a time besides the model.

    Args:
        path: where; written beside and renamed.
        config: of the model.
        tensors: its `state_dict()`.
    """
    ours = split_qkv(tensors)
    comment = "" if config.grid[0] == config.grid[1] else COMMENT.format(*config.image_size)
    with atomic_write(path) as file, NpzWriter(file, comment.encode()) as archive:
        for layout in _layouts(config):
            array = layout.to_google(ours[layout.ours].detach().cpu().float())
            archive.write(_published(layout.google), array.contiguous().numpy())


@dataclass(frozen=True)
class _Source:
    """Where in the file an array of today's name lies."""

    member: str
    shape: Shape
    index: int | None = None  # which slice, where the arrays of all blocks are stacked into one
    skipped: int = 0  # rows in front that the file leaves out because they are zero


@dataclass(frozen=True)
class _Layout:
    """One array: its name in our model and in Google's, and the way there and back."""

    ours: str
    google: str
    shape: Shape  # Google's
    to_ours: Callable[[Tensor], Tensor]
    to_google: Callable[[Tensor], Tensor]


def _sources(members: Mapping[str, Member], path: Path) -> dict[str, _Source]:
    """Undo what the history of the format left: prefixes, published names, scanned blocks, 4-D GroupNorm."""
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in members), "")
    out: dict[str, _Source] = {}
    for member, header in members.items():  # training states hold more than weights: the optimiser's part is left out
        if not member.startswith(prefix):
            continue
        for pattern, reason in FOREIGN:
            if re.search(pattern, member):
                raise WeightsError(f"{path} is not the classic ViT ({member}): {reason}")
        for name, source in _read_name(member, member.removeprefix(prefix), header.shape):
            if name in out:
                raise WeightsError(f"{path} holds {name} twice: as {out[name].member} and as {member}")
            out[name] = source
    if (patches := out.pop("pos_embedding", None)) is not None and POSITIONS not in out:
        # big_vision keeps the patches' positions alone at the top: the class token's is zero
        cls = 1 if "cls" in out else 0
        shape = patches.shape
        out[POSITIONS] = _Source(patches.member, (shape[0], shape[1] + cls, *shape[2:]), skipped=cls)
    return out


def _read_name(member: str, name: str, shape: Shape) -> Iterator[tuple[str, _Source]]:
    for today, published in _PUBLISHED.items():
        name = name.replace(published, today)
    if re.search(r"(^|/)gn(\d|_root|_proj)/", name) and shape[:-1] == (1, 1, 1):
        shape = shape[-1:]  # GroupNorm of old files
    if "/encoderblock/" in name and shape:  # big_vision's scan over blocks: a leading depth axis
        for i in range(shape[0]):
            yield name.replace("/encoderblock/", f"/encoderblock_{i}/"), _Source(member, shape[1:], index=i)
    else:
        yield name, _Source(member, shape)


def _read_tensors(
    archive: NpzReader, sources: Mapping[str, _Source], layouts: Mapping[str, _Layout], config: ViTConfig
) -> dict[str, Tensor]:
    """The model's tensors, filled in their final places array by array, in the order of the file."""
    tensors = {name: torch.empty(t.shape) for name, t in empty_model(config).state_dict().items()}
    places = split_qkv(tensors)  # views: to write query, key and value is to write the joined matrix
    uses: dict[str, list[tuple[_Source, _Layout]]] = defaultdict(list)
    for name, source in sources.items():
        uses[source.member].append((source, layouts[name]))
    for member, parts in uses.items():
        stacked = parts[0][0].index is not None
        arrays = archive.iter_slices(member) if stacked else [archive.read(member)]
        for (source, layout), array in zip(parts, arrays, strict=True):
            place = places[layout.ours]
            if source.skipped:
                place[:, : source.skipped] = 0
                place = place[:, source.skipped :]
            place.copy_(layout.to_ours(array))
    return tensors


def _layouts(config: ViTConfig) -> Iterator[_Layout]:
    for ours, tensor in split_qkv(empty_model(config).state_dict()).items():
        yield _layout(ours, tuple(tensor.shape), config.num_heads)


def _layout(ours: str, shape: Shape, heads: int) -> _Layout:
    google = _google_name(ours)
    if len(shape) == 4:  # a convolution: OIHW <-> HWIO
        hwio = (*shape[2:], shape[1], shape[0])
        return _Layout(ours, google, hwio, lambda a: a.permute(3, 2, 0, 1), lambda a: a.permute(2, 3, 1, 0))
    if re.search(r"attention\.(query|key|value)\.weight$", ours):  # (D, D) <-> (D, heads, d)
        split = (shape[1], heads, shape[0] // heads)
        return _Layout(ours, google, split, lambda a: a.flatten(1).T, lambda a: a.T.reshape(split))
    if re.search(r"attention\.(query|key|value)\.bias$", ours):  # (D,) <-> (heads, d)
        rows = (heads, shape[0] // heads)
        return _Layout(ours, google, rows, lambda a: a.flatten(), lambda a: a.reshape(rows))
    if ours.endswith("attention.out.weight"):  # (D, D) <-> (heads, d, D)
        split = (heads, shape[1] // heads, shape[0])
        return _Layout(ours, google, split, lambda a: a.flatten(0, 1).T, lambda a: a.T.reshape(split))
    if len(shape) == 2:  # dense: (out, in) <-> (in, out)
        return _Layout(ours, google, shape[::-1], lambda a: a.T, lambda a: a.T)
    if len(shape) == 1:  # a GroupNorm of old files is (1, 1, 1, C)
        return _Layout(ours, google, shape, lambda a: a.flatten(), lambda a: a)
    return _Layout(ours, google, shape, lambda a: a, lambda a: a)


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


def _sizes(shapes: Mapping[str, Shape], path: Path) -> Sizes:
    """What the shapes say, by the names of today's vit_jax.

    Raises:
        WeightsError: arrays that every ViT has are missing or have other dimensions.
    """

    def shape(name: str, ndim: int) -> Shape:
        if len(shapes.get(name, ())) != ndim:
            found = shapes.get(name, "nothing")
            raise WeightsError(
                f"{path} is not a Google ViT checkpoint: {name} of {ndim} dimensions expected, found {found}. "
                f"It holds: {', '.join(sorted(shapes)[:8])}{', ...' if len(shapes) > 8 else ''}"
            )
        return shapes[name]

    block = "Transformer/encoderblock_0"
    p1, p2, channels, width = shape("embedding/kernel", 4)
    _, heads, _ = shape(f"{block}/MultiHeadDotProductAttention_0/query/kernel", 3)
    _, mlp_dim = shape(f"{block}/MlpBlock_0/Dense_0/kernel", 2)
    if POSITIONS not in shapes:
        raise WeightsError(
            f"{path} holds no position embeddings: big_vision's fixed ones (sincos2d) are not stored in its files, "
            "and the paper's model learns them"
        )
    stem = len(shapes.get("conv_root/kernel", ())) == 4
    units = [(int(m[1]), int(m[2])) for name in shapes if (m := re.match(r"block(\d+)/unit(\d+)/", name))]
    stages = range(1, max((stage for stage, _ in units), default=0) + 1)
    return Sizes(
        kernel=(p1, p2),
        channels=shapes["conv_root/kernel"][2] if stem else channels,
        hidden_size=width,
        mlp_dim=mlp_dim,
        num_layers=len({m[1] for name in shapes if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}),
        num_heads=heads,
        num_classes=shape("head/kernel", 2)[1] if "head/kernel" in shapes else 0,
        representation_size=shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in shapes else None,
        positions=shape(POSITIONS, 3)[1],
        has_cls="cls" in shapes,
        stages=tuple(max((unit for s, unit in units if s == stage), default=0) for stage in stages) if stem else None,
        root_width=shapes["conv_root/kernel"][3] if stem else 64,
    )


def _stated_size(comment: bytes) -> Size | None:
    found = re.fullmatch(COMMENT.format(r"(\d{1,9})", r"(\d{1,9})"), comment.decode("utf-8", "replace"))
    return (int(found[1]), int(found[2])) if found else None


class Google(Family):
    """Google's `.npz` files, as vit_jax and big_vision write them; told by the kind of file."""

    name, title = "google", "Google's code"
    position_resize, preset = "google", "google"
    imagenet = True

    def check_path(self, path: Path) -> None:
        if path.suffix != ".npz":
            raise WeightsError(f"{path}: Google's format is an .npz file, so give a name that ends in .npz")

    def refusals(self, config: ViTConfig, path: Path) -> Iterator[str]:
        if config.gap_class_token or config.norm_after_pooling:
            after = config.norm_after_pooling
            what = "LayerNorm comes after pooling" if after else "a class token stands beside the mean"
            yield f'its head takes the mean of all tokens after the LayerNorm, but here {what}: write to="timm"'

    def changes(self, config: ViTConfig, path: Path) -> Iterator[str]:
        yield from constants(config, gelu="tanh", name=self.name)

    def losses(self, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
        config = checkpoint.config
        yield from without_description(self, checkpoint, path)
        if not config.num_classes:
            yield "the format does not say that the head is missing on purpose: load with num_classes=0"
        if config.grid[0] != config.grid[1]:
            yield f"the format does not say that the grid is {config.grid} (vitreous finds it again)"
        yield from never_kept(self, config)

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        write(path, checkpoint.config, checkpoint.tensors)
