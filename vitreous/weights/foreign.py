"""Kindred architectures that are not the classic ViT: what gives each away, and why it cannot be loaded."""

import re
from collections.abc import Iterable

from vitreous.base.errors import WeightsError

# Parts of names that the classic ViT never has, and what the model has that goes by them.
SIGNS = (
    (r"vision_model\.|visual\.(class_embedding|conv1)|text_model|logit_scale", "the towers of an image-text model"),
    (r"norm_pre\.|ln_pre\.|pre_?layr?norm", "CLIP's extra LayerNorm between the embedding and the first block"),
    (r"reg_token|register_tokens|storage_tokens", "register tokens beside the class token"),
    (r"dist_token|distillation_token|head_dist|distillation_classifier", "a distillation token with its own head"),
    (r"rope|rotary|periods", "rotary positions (RoPE) in place of learned ones"),
    (r"rel_pos|relative_position|relative_coords", "relative positions in the attention"),
    (r"(mlp|ffn)\.(w12|w[123]|weights_in|fc1_[gx]|gate_proj|up_proj)\.", "a SwiGLU in place of the MLP"),
    (r"(^|[._])[qk]_norm\.|(query|key)_?(layer)?norm", "normalised queries and keys (QK norm)"),
    (r"attn\.norm\.|mlp\.norm\.|inner_attn_ln|ffn_ln", "an extra norm inside attention or MLP"),
    (r"attn_pool\.|probe$|pooling_head", "attention pooling (a MAP head) in place of the class token"),
    (r"attn\.[qv]_bias", "BEiT's attention, whose keys have no bias"),
    (r"running_(mean|var)|(^|\.)bn\d*\.", "BatchNorm, so a convolutional stem, or no attention at all"),
    (r"\.(attns|ffns)\.|\.(attn|ffn)\d\.|(^|\.)in_proj\.", "attention and MLP side by side in one block"),
    (r"patch_embed(ding)?s?\.norm\.|to_patch_embedding\.[13]\.", "a LayerNorm in the patch embedding"),
    (r"patch_embed\.(conv|backbone\.conv)\d", "a convolutional stem of another kind"),
    (r"downsample|layers\.\d+\.blocks", "stages of falling resolution, as Swin has"),
)


def refuse_foreign(names: Iterable[str], source: str) -> None:
    """An error with the reason when a name belongs to another architecture.

    Args:
        names: tensors that the model has no place for.
        source: what messages call the file.
    """
    names = sorted(names)
    for sign, what in SIGNS:
        for name in names:
            if re.search(sign, name):
                raise WeightsError(f"{source} is not the classic ViT: it has {what} ({name})")
