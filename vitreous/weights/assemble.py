"""From a file with foreign names to a model's tensors: what torch's families of ViT have in common.

The steps are: rename, refuse what is another architecture, read the sizes off the shapes, check
names, shapes and types, and only then take the tensors over. A tensor that is the same in both is
not copied. What has to be computed is computed block by block, so that at no time much more than
one copy of the weights is in memory.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.config import Size, ViTConfig
from vitreous.skeleton import empty_model
from vitreous.weights.architecture import Sizes, infer_config
from vitreous.weights.checkpoint import Hints, check_names, check_shapes
from vitreous.weights.foreign import refuse_foreign
from vitreous.weights.names import Names
from vitreous.weights.stored import Stored

logger = logging.getLogger("vitreous")
Shape = tuple[int, ...]
LeftOut = Sequence[tuple[str, str]]  # pattern of names, and why the model does without

# Names besides those of our own model: query, key and value apart, and LayerScale.
PARTS = ("query", "key", "value")
SCALES = {"attention.out": "scale1", "mlp.fc2": "scale2"}


@dataclass
class Assembled:
    """The model's configuration and tensors, and what is to be known of how they were made."""

    config: ViTConfig
    tensors: dict[str, Tensor]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """How one tensor of ours is made: of which tensors of the file, of which shapes, and how."""

    sources: tuple[str, ...]
    shapes: tuple[Shape, ...]
    make: Callable[..., Tensor] | None = None  # None: taken as it is


def assemble(
    stored: Stored,
    names: Names,
    hints: Hints,
    settings: Mapping[str, Any],
    left_out: LeftOut = (),
    image_size: Size | None = None,
) -> Assembled:
    """Make a model's tensors of a file's.

    Args:
        stored: the file's tensors.
        names: the family's.
        hints: what the user says.
        settings: fields of `ViTConfig` that no shape tells.
        left_out: which tensors are of no use to the model, and why.
        image_size: (H, W) that the file's positions are for, where something says so.

    Raises:
        WeightsError: another architecture, or tensors missing, too many, or of wrong shapes or types.
    """
    theirs, reasons = _rename(stored, names, left_out)
    shapes = {ours: tuple(stored.tensors[name].shape) for ours, name in theirs.items()}
    table = names.as_in(stored.tensors)
    config = infer_config(
        _sizes(shapes, stored.source),
        stored.source,
        settings,
        stated=[image_size] if image_size is not None else [],
        asked=hints.image_size,
        num_heads=hints.num_heads,
    )
    rules = _rules(config, shapes)

    expected = {
        source: shape for rule in rules.values() for source, shape in zip(rule.sources, rule.shapes, strict=True)
    }
    shown = {ours: theirs.get(ours) or table.theirs(ours) or ours for ours in {*expected, *theirs}}
    check_names([shown[ours] for ours in expected], [shown[ours] for ours in theirs], stored.source)
    wanted, found = ({shown[ours]: shape for ours, shape in them.items()} for them in (expected, shapes))
    check_shapes(wanted, found, stored.source)
    stored.check_numbers(list(theirs.values()))

    provenance = {"tensors": f"{len(expected)} of {len(expected)} tensors", **_remarks(config, stored, theirs)}
    if reasons:
        provenance["left_out"] = reasons
        logger.info("%s: left out %s", stored.source, "; ".join(f"{n} ({why})" for why, n in reasons.items()))
    return Assembled(config, _take_over(stored, rules, theirs), provenance | stored.notes)


def _remarks(config: ViTConfig, stored: Stored, theirs: Mapping[str, str]) -> dict[str, Any]:
    """What is not as the file has it."""
    remarks = {}
    types = {str(stored.tensors[name].dtype).removeprefix("torch.") for name in theirs.values()}
    if types != {"float32"}:
        remarks["stored_as"] = ", ".join(sorted(types))
    if any(".scale" in ours for ours in theirs):
        remarks["layer_scale"] = "folded into the attention projection and the second MLP layer"
    if not any(re.search(r"\.(qkv|query)\.bias$", ours) for ours in theirs):
        remarks["qkv_bias"] = "zero: the file has none"
    if stored.tensors[theirs["position_embedding"]].shape[1] < config.num_tokens:
        remarks["class_position"] = "zero: the file has none (no_embed_class)"
    return remarks


def _rename(stored: Stored, names: Names, left_out: LeftOut) -> tuple[dict[str, str], dict[str, str]]:
    """Our names -> theirs, and why how many tensors stay out."""
    theirs: dict[str, str] = {}
    unknown, reasons = [], Counter[str]()
    for name in stored.tensors:
        why = next((why for pattern, why in left_out if re.match(pattern, name)), None)
        ours = names.ours(name)
        if why is not None:
            reasons[why] += 1
        elif ours is None:
            unknown.append(name)
        elif ours in theirs:
            raise WeightsError(f"{stored.source} holds {ours} twice: as {theirs[ours]} and as {name}")
        else:
            theirs[ours] = name
    refuse_foreign(unknown, stored.source)
    theirs.update({f"?{name}": name for name in unknown})  # for the check to name them
    return theirs, {why: f"{n} tensor{'s' if n > 1 else ''}" for why, n in reasons.items()}


def _sizes(shapes: Mapping[str, Shape], source: str) -> Sizes:
    """What the shapes say, by our names.

    Raises:
        WeightsError: tensors that every ViT has are missing or have other dimensions.
    """

    def shape(pattern: str, ndim: int) -> Shape:
        found = next((shape for name, shape in shapes.items() if re.fullmatch(pattern, name)), ())
        if len(found) != ndim:
            what = pattern.replace("\\", "").replace("d+", "*")
            raise WeightsError(
                f"{source} is not a whole ViT: {what} of {ndim} dimensions expected, found {found or 'none'}"
            )
        return found

    width, channels, *kernel = shape("patch_embedding.projection.weight", 4)
    mlp_dim = shape(r"blocks\.\d+\.mlp\.fc1\.weight", 2)[0]
    if shape(r"blocks\.\d+\.mlp\.fc2\.weight", 2)[1] * 2 == mlp_dim:
        raise WeightsError(
            f"{source} is not the classic ViT: it has a SwiGLU in place of the MLP (fc2 is half as wide)"
        )
    stem = len(shapes.get("stem.root.weight", ())) == 4
    units = {(int(m[1]), int(m[2])) for name in shapes if (m := re.match(r"stem\.stages\.(\d+)\.(\d+)\.", name))}
    counts = Counter(stage for stage, _ in units)
    return Sizes(
        kernel=(kernel[0], kernel[1]),
        channels=shapes["stem.root.weight"][1] if stem else channels,
        hidden_size=width,
        mlp_dim=mlp_dim,
        num_layers=len({m[1] for name in shapes if (m := re.match(r"blocks\.(\d+)\.", name))}),
        num_heads=None,
        num_classes=shape("head.weight", 2)[0] if "head.weight" in shapes else 0,
        representation_size=shape("pre_logits.weight", 2)[0] if "pre_logits.weight" in shapes else None,
        positions=shape("position_embedding", 3)[1],
        has_cls="cls_token" in shapes,
        class_row_optional=True,
        stages=tuple(counts[stage] for stage in sorted(counts)) if stem else None,
        root_width=shapes["stem.root.weight"][0] if stem else 64,
    )


def _rules(config: ViTConfig, found: Mapping[str, Shape]) -> dict[str, Rule]:
    """One rule for each tensor of the model, fit for what the file has."""
    apart = any(re.search(r"\.attention\.query\.", name) for name in found)
    no_bias = not any(re.search(r"\.attention\.(qkv|query)\.bias$", name) for name in found)
    scaled = {layer: any(f".{scale}" in name for name in found) for layer, scale in SCALES.items()}
    rules: dict[str, Rule] = {}
    for name, tensor in empty_model(config).state_dict().items():
        shape = tuple(tensor.shape)
        layer = next((layer for layer in SCALES if f".{layer}." in name), None)
        if name.endswith(".qkv.bias") and no_bias:
            rules[name] = Rule((), (), lambda shape=shape: torch.zeros(shape))
        elif name == "position_embedding" and found[name][1:2] == (config.num_tokens - 1,):
            rules[name] = Rule((name,), ((1, shape[1] - 1, shape[2]),), _add_class_row)
        elif ".qkv." in name and apart:
            third = (shape[0] // 3, *shape[1:])
            rules[name] = Rule(tuple(name.replace(".qkv.", f".{part}.") for part in PARTS), (third,) * 3, _join)
        elif layer is not None and scaled[layer]:
            scale = f"{name.split(layer)[0]}{SCALES[layer]}"
            rules[name] = Rule((name, scale), (shape, shape[:1]), _scale)
        else:
            rules[name] = Rule((name,), (shape,))
    return rules


def _join(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Rows of query, key, value, as `Attention.qkv` has them."""
    joined = torch.empty(3 * len(query), *query.shape[1:])
    for place, part in zip(joined.chunk(3), (query, key, value), strict=True):
        if part.dtype == joined.dtype:  # a plain copy: torch's threads cost more than they bring
            np.copyto(place.numpy(), part.numpy())
        else:
            place.copy_(part)
    return joined


def _add_class_row(positions: Tensor) -> Tensor:
    """Positions for the patches alone (`no_embed_class`): the class token's is zero."""
    return torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1).float()


def _scale(tensor: Tensor, scale: Tensor) -> Tensor:
    """LayerScale, gamma * (W x + b) = (gamma W) x + gamma b: exact for half-precision files, else rounded once."""
    return tensor.float() * scale.float().view(-1, *[1] * (tensor.ndim - 1))


def _take_over(stored: Stored, rules: Mapping[str, Rule], theirs: Mapping[str, str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    computed: list[str] = []
    for name, rule in rules.items():
        if rule.make is None and stored.tensors[theirs[name]].dtype == torch.float32:
            tensors[name] = stored.tensors[theirs[name]].contiguous()
        else:
            computed.append(name)
    for members in _batches(computed, stored, rules, theirs):
        needed = list(dict.fromkeys(theirs[source] for name in members for source in rules[name].sources))
        parts = stored.apart(needed)
        for name in members:
            rule = rules[name]
            tensors[name] = (rule.make or _as_float32)(*(parts[theirs[source]] for source in rule.sources))
        del parts  # before the next are read
    return {name: tensors[name] for name in rules}


def _batches(
    computed: list[str], stored: Stored, rules: Mapping[str, Rule], theirs: Mapping[str, str]
) -> Iterator[list[str]]:
    """Whole blocks, as many as make up a sixteenth of the file: few openings, and little memory."""
    blocks: dict[str, list[str]] = defaultdict(list)  # weight and bias use one LayerScale, so they stay together
    for name in computed:
        blocks[".".join(name.split(".")[:2])].append(name)
    sizes = {name: stored.tensors[theirs_name].nbytes for name, theirs_name in theirs.items()}
    limit, batch, size = sum(sizes.values()) / 16, list[str](), 0
    for members in blocks.values():
        batch += members
        size += sum(sizes[source] for name in members for source in rules[name].sources)
        if size >= limit:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32).contiguous()
