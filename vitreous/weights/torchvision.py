"""torchvision's ViT files, `vit_b_16` ... `vit_h_14`, in their names of today and of before 0.14.

Query, key and value are one matrix, as here. The files hold nothing but tensors; always GELU erf,
eps 1e-6 and a square image. Facts from torchvision 0.29.1 `models/vision_transformer.py`.
"""

from collections.abc import Mapping

from torch import Tensor

from vitreous.config import ViTConfig
from vitreous.pictures.preprocess import Interpolation, Preprocess
from vitreous.weights.assemble import assemble
from vitreous.weights.carried import read_carried
from vitreous.weights.checkpoint import Checkpoint, Hints
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


def read(stored: Stored, hints: Hints) -> Checkpoint:
    """Read torchvision's tensors.

    Raises:
        WeightsError: not a classic ViT, or not whole.
    """
    carried = read_carried(stored)
    settings, size = (carried.settings, carried.image_size) if carried else (SETTINGS, None)
    made = assemble(stored, NAMES, hints, settings, image_size=size)
    provenance = {"family": "torchvision", **made.provenance}
    if carried:
        preprocess, labels = carried.preprocess.resized(made.config.image_size), carried.labels
        return Checkpoint(made.config, made.tensors, preprocess, labels, provenance, carried.head_expected)
    preprocess, provenance["preprocess"] = _preprocess(made.config)
    return Checkpoint(made.config, made.tensors, preprocess, None, provenance, head_expected=True)


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
