"""MMPretrain's ViT files (and MMClassification's): tensors in OpenMMLab's names, most often under `state_dict`.

A plain renaming: query, key and value are one matrix, as here. The files hold nothing but tensors: GELU erf, eps 1e-6,
and a position embedding that is resized bicubically. Facts from MMPretrain 1.2 `backbones/vision_transformer.py`,
`heads/vision_transformer_head.py`, `utils/embed.py` and `configs/vision_transformer`.
"""

from collections.abc import Iterator
from pathlib import Path

from vitreous.base.errors import WeightsError
from vitreous.config import ViTConfig
from vitreous.weights.assemble import assemble
from vitreous.weights.backbones import PRETRAINING
from vitreous.weights.carried import read_carried
from vitreous.weights.checkpoint import Checkpoint, Hints, default_preprocess
from vitreous.weights.family import (
    Beside,
    Family,
    constants,
    heads_not_told,
    never_kept,
    single_file,
    without_description,
    write_tensors,
)
from vitreous.weights.names import Names
from vitreous.weights.stored import Stored

_LAYER = "backbone.layers.#"
NAMES = Names(
    [
        ("cls_token", "backbone.cls_token"),
        ("position_embedding", "backbone.pos_embed"),
        ("patch_embedding.projection.*", "backbone.patch_embed.projection.*"),
        ("blocks.#.norm1.*", f"{_LAYER}.ln1.*"),
        ("blocks.#.attention.qkv.*", f"{_LAYER}.attn.qkv.*"),
        ("blocks.#.attention.out.*", f"{_LAYER}.attn.proj.*"),
        ("blocks.#.scale1", f"{_LAYER}.attn.gamma1.weight"),
        ("blocks.#.norm2.*", f"{_LAYER}.ln2.*"),
        ("blocks.#.mlp.fc1.*", f"{_LAYER}.ffn.layers.0.0.*"),
        ("blocks.#.mlp.fc2.*", f"{_LAYER}.ffn.layers.1.*"),
        ("blocks.#.scale2", f"{_LAYER}.ffn.gamma2.weight"),
        ("norm.*", "backbone.ln1.*"),
        ("norm.*", "backbone.ln2.*"),  # of the mean over patches (out_type="avg_featmap"), after pooling
        ("pre_logits.*", "head.layers.pre_logits.*"),
        ("head.*", "head.layers.head.*"),
        ("head.*", "head.fc.*"),  # beside the mean, a plain linear head
    ]
)


class MMPretrain(Family):
    """MMPretrain's `VisionTransformer` with its classification heads."""

    name, title = "mmpretrain", "MMPretrain"
    anchor = r"(backbone\.)?patch_embed\.projection\.weight"
    position_resize, preset = "huggingface", "mmpretrain"  # the arithmetic of `resize_pos_embed` is Hugging Face's
    imagenet = True

    def read(self, stored: Stored, hints: Hints, beside: Beside) -> Checkpoint:
        """A classifier, or a backbone alone with or without `backbone.` before its names."""
        if not any(name.startswith("backbone.") for name in stored.tensors):
            stored = stored.renamed({f"backbone.{name}": name for name in stored.tensors})
        if carried := read_carried(stored):
            made = assemble(stored, NAMES, hints, carried.settings, image_size=carried.image_size)
            preprocess, labels = carried.preprocess.resized(made.config.image_size), carried.labels
            provenance = {"family": self.name, **made.provenance}
            return Checkpoint(made.config, made.tensors, preprocess, labels, provenance, carried.head_expected)
        made = assemble(stored, NAMES, hints, _settings(stored), PRETRAINING)
        preprocess = default_preprocess(self.preset, made.config)
        provenance = {
            "family": self.name,
            "preprocess": "assumed: that of MMPretrain's configs for ViT at 224 pixels",
            **made.provenance,
        }
        expected = any(name.startswith("head.") for name in stored.tensors)
        return Checkpoint(made.config, made.tensors, preprocess, None, provenance, expected)

    def check_path(self, path: Path) -> None:
        if not single_file(path):
            raise WeightsError(f"{path}: MMPretrain's format is one file, so give a name that ends in .pth")

    def refusals(self, config: ViTConfig, path: Path) -> Iterator[str]:
        if config.resnet is not None:
            yield 'it has no hybrids with a ResNet stem: write to="google" or "timm"'
        if config.classifier == "gap" and not config.norm_after_pooling:
            yield 'where its head reads the mean over patches, LayerNorm comes after: write to="google" or "timm"'
        if config.representation_size is not None and (config.classifier == "gap" or not config.num_classes):
            yield 'its pre-logits layer is part of a head that reads the class token: write to="google"'

    def changes(self, config: ViTConfig, path: Path) -> Iterator[str]:
        yield from constants(config, gelu="erf", name=self.name)

    def losses(self, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
        config = checkpoint.config
        yield from without_description(self, checkpoint, path)
        yield from heads_not_told(config)
        yield from never_kept(self, config)

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        rows = NAMES.rows
        if checkpoint.config.classifier == "gap":
            rows = (("norm.*", "backbone.ln2.*"), ("head.*", "head.fc.*"), *rows)
        names = Names(rows)
        write_tensors(path, {str(names.theirs(name)): t for name, t in checkpoint.tensors.items()}, checkpoint)


def _settings(stored: Stored) -> dict[str, object]:
    """What the shapes do not say."""
    settings: dict[str, object] = {"gelu": "erf", "layer_norm_eps": 1e-6, "position_resize": "huggingface"}
    after = "backbone.ln2.weight" in stored.tensors
    if after and "backbone.ln1.weight" in stored.tensors:
        raise WeightsError(
            f"{stored.source} is not the classic ViT: it normalises before and after taking the mean over patches "
            "(backbone.ln1 and backbone.ln2)"
        )
    if after or "backbone.cls_token" not in stored.tensors:
        pooled = {"gap_class_token": "backbone.cls_token" in stored.tensors, "norm_after_pooling": after}
        return settings | {"classifier": "gap"} | pooled
    return settings | {"classifier": "token"}
