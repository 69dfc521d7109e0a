"""The table of torchvision's own weights against torchvision."""

from torchvision.models import get_model_weights

from vitreous.config import ViTConfig
from vitreous.weights.torchvision import PUBLISHED, _preprocess

VARIANTS = {"vit_b_16": "B/16", "vit_b_32": "B/32", "vit_l_16": "L/16", "vit_l_32": "L/32", "vit_h_14": "H/14"}


def test_every_set_of_weights_gets_its_own_preprocessing() -> None:
    seen = set()
    for model, variant in VARIANTS.items():
        for weights in get_model_weights(model):
            size, theirs = weights.meta["min_size"][0], weights.transforms()
            config = ViTConfig.from_name(variant, image_size=size)
            if (key := (config.hidden_size, config.patch_size[0], size)) in seen:
                continue  # the second set of one size
            seen.add(key)
            ours, why = _preprocess(config)
            assert why == f"assumed: that of {weights}"
            assert (ours.size, ours.resize) == ((size, size), "short")
            assert ours.interpolation == theirs.interpolation.value
            assert (ours.mean, ours.std) == (tuple(theirs.mean), tuple(theirs.std))
            assert [round(size / ours.crop_fraction)] == theirs.resize_size
    assert seen == set(PUBLISHED)
