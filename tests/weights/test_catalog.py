"""The table of published checkpoints, against what its names themselves say."""

import re

import pytest

from vitreous.base.errors import WeightsError
from vitreous.config import VARIANTS, ViTConfig
from vitreous.weights import catalog


def test_every_entry_agrees_with_its_own_name() -> None:
    entries = catalog.entries()
    assert len({entry.path for entry in entries}) == len({entry.name for entry in entries}) == len(entries) >= 60
    for entry in entries:
        model = re.split(r"[/]|-i2?1k", entry.path)[1].replace("ViT-", "").replace("-224", "")
        assert model.replace("_", "").replace("+", "") == entry.variant.replace("/", "").replace("+", "")
        assert entry.variant in VARIANTS
        if size := re.search(r"(?:res_|-)(224|384)$", entry.path):
            assert entry.image_size == int(size[1])
        if entry.image_size:
            ViTConfig.from_name(entry.variant, image_size=entry.image_size)
        assert (entry.finetuned == "imagenet2012") == ("imagenet2012" in entry.path)
        assert entry.pretrained == ("imagenet21k" if "21k" in entry.path else "imagenet2012")
        for accuracy in (entry.google_top1, entry.timm_top1):
            assert accuracy is None or (70 < accuracy < 90 and (entry.finetuned or entry.path.startswith("sam/")))


def test_names_fit_on_a_line_and_lead_to_the_path() -> None:
    for entry in catalog.entries():
        assert len(entry.name) <= 54
        assert catalog.resolve(entry.name) == catalog.resolve(entry.path) == entry.path
        assert catalog.resolve(f"{entry.path}.npz") == entry.path


def test_published_accuracy() -> None:
    """As in the README of google-research/vision_transformer, section "Available ViT models"."""
    best = (
        "augreg/R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1--imagenet2012-steps_20k-lr_0.01-res_384"
    )
    (entry,) = [entry for entry in catalog.entries() if entry.path == best]
    assert entry.google_top1 == 85.99
    assert entry.name == "augreg/R50_L_32-i21k-medium1-wd_0.1-do_0.1-lr_0.01-384"


@pytest.mark.parametrize(
    ("words", "count"), [((), 69), (("B/16",), 11), (("vit-b_16", "384"), 4), (("R26",), 5), (("augreg", "h/14"), 0)]
)
def test_filters(words: tuple[str, ...], count: int) -> None:
    found = catalog.search(words)
    assert len(found) == count
    if "384" in words:
        assert {(entry.variant, entry.image_size) for entry in found} == {("B/16", 384)}


def test_paths_that_are_not_listed() -> None:
    path = "augreg/B_16-i21k-30ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
    assert catalog.resolve(path) == path
    assert catalog.resolve("sam/ViT-S_32") == "sam/ViT-S_32"
    for name in ("B/16", "augreg/B_16", "augreg/../B_16-aug_", "elsewhere/ViT-B_16", ""):
        with pytest.raises(WeightsError, match="vitreous models"):
            catalog.resolve(name)
