"""torchvision's ViT files, `vit_b_16` ... `vit_h_14`, in their names of today and of before 0.14.

Query, key and value are one matrix, as here. The files hold nothing but tensors; always GELU erf,
eps 1e-6 and a square image. Facts from torchvision 0.29.1 `models/vision_transformer.py`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from vitreous.base.errors import WeightsError
from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Interpolation, Preprocess
from vitreous.weights.assemble import assemble
from vitreous.weights.carried import read_carried
from vitreous.weights.checkpoint import Checkpoint, Hints
from vitreous.weights.family import (
    Beside,
    Family,
    constants,
    heads_not_told,
    never_kept,
    reads_class_token,
    single_file,
    without_description,
    write_tensors,
)
from vitreous.weights.names import Names
from vitreous.weights.stored import Stored

_BLOCK = "encoder.layers.encoder_layer_#"
NAMES = Names(
    [
        ("cls_token", "class_token"),
        ("position_embedding", "encoder.pos_embedding"),
        ("patch_embedding.projection.*", "conv_proj.*"),
        ("blocks.#.norm1.*", f"{_BLOCK}.ln_1.*"),
        ("blocks.#.attention.qkv.*", f"{_BLOCK}.self_attention.in_proj_*"),
        ("blocks.#.attention.out.*", f"{_BLOCK}.self_attention.out_proj.*"),
        ("blocks.#.norm2.*", f"{_BLOCK}.ln_2.*"),
        ("blocks.#.mlp.fc1.*", f"{_BLOCK}.mlp.0.*"),
        ("blocks.#.mlp.fc1.*", f"{_BLOCK}.mlp.linear_1.*"),
        ("blocks.#.mlp.fc2.*", f"{_BLOCK}.mlp.3.*"),
        ("blocks.#.mlp.fc2.*", f"{_BLOCK}.mlp.linear_2.*"),
        ("norm.*", "encoder.ln.*"),
        ("pre_logits.*", "heads.pre_logits.*"),
        ("head.*", "heads.head.*"),
    ]
)
SETTINGS = {"gelu": "erf", "layer_norm_eps": 1e-6, "position_resize": "torchvision", "classifier": "token"}

# (D, P, pixels) -> torchvision's own weights, the shorter side before the crop, and the interpolation. Where two
# sets are of one size (`IMAGENET1K_V1` and `IMAGENET1K_SWAG_LINEAR_V1`), the first is assumed. A table, because to
# ask torchvision means to import it, which takes seconds.
PUBLISHED: dict[tuple[int, int, int], tuple[str, int, Interpolation]] = {
    (768, 16, 224): ("ViT_B_16_Weights.IMAGENET1K_V1", 256, "bilinear"),
    (768, 16, 384): ("ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1", 384, "bicubic"),
    (768, 32, 224): ("ViT_B_32_Weights.IMAGENET1K_V1", 256, "bilinear"),
    (1024, 16, 224): ("ViT_L_16_Weights.IMAGENET1K_V1", 242, "bilinear"),
    (1024, 16, 512): ("ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1", 512, "bicubic"),
    (1024, 32, 224): ("ViT_L_32_Weights.IMAGENET1K_V1", 256, "bilinear"),
    (1280, 14, 224): ("ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1", 224, "bicubic"),
    (1280, 14, 518): ("ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1", 518, "bicubic"),
}


class Torchvision(Family):
    """torchvision's `VisionTransformer`."""

    name, title = "torchvision", "torchvision"
    anchor = r"conv_proj\.weight"
    position_resize, preset = "torchvision", "torchvision"
    imagenet = True

    def read(self, stored: Stored, hints: Hints, beside: Beside) -> Checkpoint:
        carried = read_carried(stored)
        settings, size = (carried.settings, carried.image_size) if carried else (SETTINGS, None)
        made = assemble(stored, NAMES, hints, settings, image_size=size)
        provenance = {"family": self.name, **made.provenance}
        if carried:
            preprocess, labels = carried.preprocess.resized(made.config.image_size), carried.labels
            return Checkpoint(made.config, made.tensors, preprocess, labels, provenance, carried.head_expected)
        preprocess, provenance["preprocess"] = _preprocess(made.config)
        return Checkpoint(made.config, made.tensors, preprocess, None, provenance, head_expected=True)

    def check_path(self, path: Path) -> None:
        if not single_file(path):
            raise WeightsError(
                f"{path}: torchvision's format is one file, so give a name that ends in .safetensors or .pth"
            )

    def refusals(self, config: ViTConfig, path: Path) -> Iterator[str]:
        yield from reads_class_token(config)
        if not config.num_classes:
            yield 'it has no backbones without a head: write to="timm" or "huggingface"'
        image, patch = config.image_size, config.patch_size
        if image[0] != image[1] or patch[0] != patch[1]:
            yield f'its images and patches are square, these are {image} and {patch}: write to="timm"'
        if config.in_channels != 3:
            yield f'it takes 3 channels, not {config.in_channels}: write to="timm"'

    def changes(self, config: ViTConfig, path: Path) -> Iterator[str]:
        yield from constants(config, gelu="erf", name=self.name)

    def losses(self, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
        config = checkpoint.config
        yield from without_description(self, checkpoint, path)
        yield from heads_not_told(config)
        yield from never_kept(self, config)

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        write_tensors(path, to_torchvision(checkpoint.tensors), checkpoint)


def to_torchvision(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our `state_dict` under torchvision's names."""
    return {str(NAMES.theirs(name)): tensor for name, tensor in tensors.items()}


def _preprocess(config: ViTConfig) -> tuple[Preprocess, str]:
    """What torchvision's own weights of just this size come with, and why that was chosen."""
    preset = Preprocess.preset("torchvision", size=config.image_size)
    key = (config.hidden_size, config.patch_size[0], config.image_size[0])
    if key not in PUBLISHED or config.num_classes != 1000:
        return preset, "assumed: torchvision's default"
    weights, short, interpolation = PUBLISHED[key]
    crop_fraction = config.image_size[0] / short
    return preset.replace(crop_fraction=crop_fraction, interpolation=interpolation), f"assumed: that of {weights}"
