"""DINO, MAE and DINOv2: ViTs of this very architecture, trained without labels and published without a head.

Their files have timm's names. GELU is erf and eps 1e-6 in all. Each is told by its content.

Sources: facebookresearch/dino `vision_transformer.py` and `eval_linear.py`; mae `models_mae.py` and
`main_finetune.py`; dinov2 `vision_transformer.py` and `data/transforms.py`.
"""

from vitreous.pictures.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitreous.weights.assemble import LeftOut, assemble
from vitreous.weights.checkpoint import Checkpoint, Hints
from vitreous.weights.names import Names
from vitreous.weights.stored import Stored

# What files of pre-training hold besides the backbone.
PRETRAINING: LeftOut = (
    (r"(\w+\.)*mask_token$", "stands for hidden patches, in pre-training only"),
    (r"decoder_|decoder\.", "decoder, used in pre-training only"),
    (r"([\w-]+\.)*(dino_|ibot_)?head\.(mlp|last_layer)\.", "projection head of self-distillation"),
)
# How each brings its positions to another grid; MAE's code has the arithmetic of Hugging Face's.
POSITIONS = {"dino": "dino", "dinov2": "dino", "mae": "huggingface"}


def recognise(stored: Stored) -> str | None:
    """`"dino"`, `"dinov2"` or `"mae"` for a file in timm's names without a classification head, else None."""
    names = stored.tensors
    if "head.weight" in names or "cls_token" not in names or "fc_norm.weight" in names:
        return None
    if "blocks.0.ls1.gamma" in names:
        return "dinov2"
    if any(name.startswith("decoder_") for name in names) or _fixed_positions(stored):
        return "mae"
    return "dino"


def read(stored: Stored, names: Names, hints: Hints, backbone: str) -> Checkpoint:
    """Read one of them: a model without a head.

    Raises:
        WeightsError: not a classic ViT, or not whole.
    """
    settings = {"gelu": "erf", "layer_norm_eps": 1e-6, "position_resize": POSITIONS[backbone], "classifier": "token"}
    made = assemble(stored, names, hints, settings, PRETRAINING)
    provenance = {"family": backbone, **made.provenance}
    return Checkpoint(made.config, made.tensors, preprocess(made.config.image_size), None, provenance)


def preprocess(size: tuple[int, int]) -> Preprocess:
    """What all three evaluate with: at 224 pixels, short side 256 bicubic, then the centre; ImageNet's mean and std."""
    return Preprocess(
        size=size,
        resize="short",
        interpolation="bicubic",
        antialias=True,
        crop_fraction=224 / 256,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _fixed_positions(stored: Stored) -> bool:
    """MAE's positions are sines and cosines, with none for the class token."""
    positions = stored.tensors.get("pos_embed")
    return positions is not None and positions.ndim == 3 and positions.numel() > 0 and not bool(positions[0, 0].any())
