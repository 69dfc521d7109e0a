"""Pictures prepared exactly as each family's own code prepares them."""

import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.conftest import shared
from vitreous.base.errors import ConfigError, ImageError
from vitreous.pictures.images import read_image
from vitreous.pictures.preprocess import Preprocess

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
# (height, width): square, the model's own, wide, high, smaller than the model, a line
SIZES = [(224, 224), (480, 480), (333, 517), (301, 201), (37, 50), (1, 3)]


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pictures() -> list[Image.Image]:
    """Generated ones of all proportions, and real ones."""
    files = (
        "pillow/flower.jpg",
        "exif-orientation-examples/Landscape_1.jpg",
        "exif-orientation-examples/Portrait_1.jpg",
    )
    real = [Image.open(shared(f"odd-images/{file}")).convert("RGB") for file in files]
    return [noise(*size) for size in SIZES] + real


def jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


# --- the same as the peers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(224, 224), (224, 320), (192, 160)])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_timm_bit_for_bit(size: tuple[int, int], crop_mode: str) -> None:
    """The evaluation transform of vit_base_patch16_224.augreg_in21k_ft_in1k."""
    import timm
    from timm.data import create_transform, resolve_data_config

    settings = timm.get_pretrained_cfg("vit_base_patch16_224.augreg_in21k_ft_in1k").to_dict()
    settings = resolve_data_config({}, pretrained_cfg=settings)
    assert (settings["crop_pct"], settings["interpolation"]) == (0.9, "bicubic")
    theirs = create_transform(**{**settings, "input_size": (3, *size), "crop_mode": crop_mode})
    ours = Preprocess.preset("timm", size)
    if crop_mode == "squash":
        ours = ours.replace(resize="squash")
    for image in pictures():
        assert torch.equal(ours.load(image), theirs(image)), image.size


def test_timm_at_384_pixels_has_no_crop() -> None:
    import timm

    published = timm.get_pretrained_cfg("vit_base_patch16_384.augreg_in21k_ft_in1k")
    assert published.crop_pct == Preprocess.preset("timm", 384).crop_fraction == 1.0
    assert Preprocess.preset("timm").resized(384).crop_fraction == 0.9  # the same settings, as asked


@pytest.mark.parametrize(("name", "resized"), [("ViT_B_16", 256), ("ViT_L_16", 242), ("ViT_H_14_SWAG", 518)])
def test_torchvision_bit_for_bit(name: str, resized: int) -> None:
    from torchvision.models import ViT_B_16_Weights, ViT_H_14_Weights, ViT_L_16_Weights

    theirs = {
        "ViT_B_16": ViT_B_16_Weights.IMAGENET1K_V1,
        "ViT_L_16": ViT_L_16_Weights.IMAGENET1K_V1,
        "ViT_H_14_SWAG": ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1,
    }[name].transforms()
    ours = Preprocess.preset("torchvision")
    if name == "ViT_L_16":
        ours = ours.replace(crop_fraction=224 / 242)
    elif name == "ViT_H_14_SWAG":
        ours = ours.replace(size=518, crop_fraction=1.0, interpolation="bicubic")
    assert ours.needed() == (resized, resized)
    for image in pictures():
        assert torch.equal(ours.load(image), theirs(image)), image.size


def test_hugging_face_bit_for_bit_and_its_fast_processor_within_one_level() -> None:
    """The fast one resizes with torchvision's own kernels, which round otherwise than Pillow here and there."""
    transformers = pytest.importorskip("transformers")
    ours = Preprocess.preset("huggingface")
    exact = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    fast = transformers.ViTImageProcessor
    for image in pictures():
        theirs = torch.as_tensor(np.asarray(exact()(image)["pixel_values"][0]))
        assert (ours.load(image) - theirs).abs().max() < 1e-6, image.size
        theirs = torch.as_tensor(np.asarray(fast()(image)["pixel_values"][0]))
        assert (ours.load(image) - theirs).abs().max() < 1 / 127.5 + 1e-6, image.size


def half_pixel_bilinear(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """`tf.image.resize` as its documentation defines it, pixel by pixel, in float64."""
    (height, width), out = image.shape[:2], np.zeros((*size, image.shape[2]))
    for i in range(size[0]):
        y = max((i + 0.5) * height / size[0] - 0.5, 0)
        top, bottom = int(y), min(int(y) + 1, height - 1)
        for j in range(size[1]):
            x = max((j + 0.5) * width / size[1] - 0.5, 0)
            left, right = int(x), min(int(x) + 1, width - 1)
            above = image[top, left] * (1 - (x - left)) + image[top, right] * (x - left)
            below = image[bottom, left] * (1 - (x - left)) + image[bottom, right] * (x - left)
            out[i, j] = above * (1 - (y - top)) + below * (y - top)
    return out


@pytest.mark.parametrize(("height", "width"), [*SIZES, (1200, 1800)])
def test_google_is_half_pixel_bilinear_unrounded(height: int, width: int) -> None:
    """In float32, as TensorFlow: positions are exact to 1e-4 of a pixel. (Against TensorFlow 2.21: 5e-5 of 255.)"""
    image = noise(height, width)
    want = half_pixel_bilinear(np.asarray(image, np.float64), (32, 48)) / 127.5 - 1
    got = Preprocess.preset("google", (32, 48)).load(image).permute(1, 2, 0).double().numpy()
    assert np.abs(got - want).max() < 2e-4


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("size", [(32, 48), (96, 96)])
def test_without_antialiasing_as_torch_interpolates(interpolation: str, size: tuple[int, int]) -> None:
    image = read_image(noise(61, 45))
    mode: dict[str, Any] = {"mode": "nearest-exact"} if interpolation == "nearest" else {"mode": interpolation}
    want = torch.nn.functional.interpolate(image[None].float(), size=size, **mode)[0] / 255
    got = Preprocess(size=size, interpolation=interpolation, **PLAIN)(image)
    assert (got - want).abs().max() < 1e-5


def test_bicubic_without_antialiasing_is_keys_kernel() -> None:
    """Enlarging needs no antialiasing, so Pillow does the same, but rounds."""
    image = Image.fromarray(np.asarray(noise(24, 20)) // 2 + 64)  # nothing to clip
    want = torch.from_numpy(np.asarray(image.resize((60, 72), Image.Resampling.BICUBIC)).copy()).permute(2, 0, 1)
    got = Preprocess(size=(72, 60), interpolation="bicubic", **PLAIN).load(image) * 255
    assert (got - want).abs().max() < 1.1  # Pillow rounds after each direction
    ramp = np.repeat(np.arange(0, 200, dtype=np.uint8)[:, None, None], 3, 2)
    line = Preprocess(size=(50, 1), interpolation="bicubic", **PLAIN).load(ramp)[0, :, 0] * 255
    assert (line - (torch.arange(50) * 4 + 1.5)).abs().max() < 1e-3  # a straight line stays one, in the right place


# --- what pitfalls ask for -------------------------------------------------------------------------------------


def test_white_and_black_become_the_known_values() -> None:
    white, black = (torch.full((3, 30, 40), v, dtype=torch.uint8) for v in (255, 0))
    for name in ("google", "timm", "huggingface"):
        preset = Preprocess.preset(name, 32)
        assert (preset(white) == 1).all()
        assert (preset(black) == -1).all()
    preset = Preprocess.preset("torchvision", 32)
    for image, want in ((white, (2.2489, 2.4286, 2.6400)), (black, (-2.1179, -2.0357, -1.8044))):
        assert (preset(image) - torch.tensor(want).view(3, 1, 1)).abs().max() < 5e-5


@pytest.mark.parametrize("name", ["google", "huggingface", "timm", "torchvision"])
def test_squashing_shows_all_four_borders_and_cropping_none(name: str) -> None:
    image = torch.zeros(3, 480, 640, dtype=torch.uint8)
    image[0, [0, -1], :] = image[0, :, [0, -1]] = 255  # red, one pixel wide
    red = Preprocess.preset(name).replace(**PLAIN)(image)[0]
    edges = [red[0], red[-1], red[:, 0], red[:, -1]]
    if Preprocess.preset(name).resize == "squash":
        assert all((edge > 0.05).all() for edge in edges)
    else:
        assert red.max() == 0


# --- geometry --------------------------------------------------------------------------------------------------


def test_short_keeps_proportions_and_the_centre() -> None:
    """A horizontal and a vertical ramp: after resizing, neighbouring pixels differ by the same both ways."""
    y, x = np.mgrid[0:300, 0:400].astype(np.uint16)
    ramp = np.stack([y * 150, x * 150, 0 * x], -1).astype(np.float32) / 65535
    for antialias in (True, False):
        preset = Preprocess(size=(100, 100), resize="short", antialias=antialias, crop_fraction=0.5, **PLAIN)
        assert preset._resized == (200, 200)
        image = preset.load(ramp)
        down, right = image[0].diff(dim=0).mean(), image[1].diff(dim=1).mean()
        assert (down - right).abs() < 0.02 * down
        centre = image[:2].mean((1, 2)) * 65535 / 150  # in pixels of the original
        assert (centre - torch.tensor([149.5, 199.5])).abs().max() < 1


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("resize", ["squash", "short"])
@pytest.mark.parametrize(("height", "width"), [(1, 20_000), (20_000, 1), (3, 5000), (1, 1)])
def test_extreme_proportions_stay_cheap(height: int, width: int, resize: str, antialias: bool) -> None:
    """Covering 248 pixels, one of 1 x 20,000 would be 248 x 4,960,000."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, : width // 2] = 255
    preset = Preprocess.preset("timm").replace(resize=resize, antialias=antialias, interpolation="bilinear")
    prepared = preset.load(image)
    assert prepared.shape == (3, 224, 224)
    if resize == "short" and width > height:
        assert abs(prepared.mean()) < 0.02  # still the centre: half white, half black


def test_cutting_far_ends_changes_nothing_that_is_seen() -> None:
    """A strip 30 times as long as high is cut, its middle third is not: the centre of both is the same."""
    strip = noise(48, 48 * 30)
    middle = strip.crop((48 * 10, 0, 48 * 20, 48))
    for antialias in (True, False):
        preset = Preprocess(size=(32, 32), resize="short", antialias=antialias)
        assert preset._without_ends(strip).width == 17 * 48
        assert preset._without_ends(middle) is middle
        assert torch.equal(preset.load(strip), preset.load(middle))


def test_call_and_load_agree_and_leave_the_picture_alone() -> None:
    image = read_image(noise(70, 50))
    before = image.clone()
    for name in ("google", "timm", "huggingface", "torchvision"):
        preset = Preprocess.preset(name, (32, 48))
        prepared = preset(image)
        assert prepared.shape == (3, 32, 48)
        assert prepared.dtype == torch.float32
        assert prepared.is_contiguous()
        assert torch.equal(prepared, preset(image.contiguous()))
        assert torch.equal(prepared, preset.load(image))
        assert torch.equal(preset.normalise(image), preset.resized((70, 50)).replace(crop_fraction=1.0)(image))
    assert torch.equal(image, before)


def test_one_channel_is_the_luminance() -> None:
    image = noise(40, 40)
    for settings in ({"antialias": True}, {}):
        preset = Preprocess(size=(40, 40), mean=(0.5,), std=(0.25,), **settings)
        want = (torch.from_numpy(np.array(image.convert("L")))[None] / 255 - 0.5) / 0.25
        assert torch.equal(preset.load(image), want)
        assert torch.equal(preset.normalise(read_image(image)), want)
    assert Preprocess(size=(20, 30), mean=(0.5,), std=(0.5,), antialias=True).load(image).shape == (1, 20, 30)


# --- reduced decoding ------------------------------------------------------------------------------------------


def test_reduced_decoding_is_asked_for_and_stays_close() -> None:
    files = [shared(f"odd-images/exif-orientation-examples/{name}_6.jpg") for name in ("Landscape", "Portrait")]
    for file in files:
        for name in ("timm", "huggingface", "torchvision"):
            preset = Preprocess.preset(name).replace(**PLAIN)
            exact, reduced = preset.load(file), preset.load(file, reduced=True)
            assert torch.equal(exact, preset(read_image(file)))
            off = (exact - reduced).abs() * 255
            assert 0 < off.mean() < 0.5
            assert off.max() <= 12.5
        google = Preprocess.preset("google")
        assert google.needed() is None
        assert torch.equal(google.load(file), google.load(file, reduced=True))


def test_settings_of_reading_are_passed_on() -> None:
    clear = Image.new("RGBA", (8, 8), (0, 255, 0, 0))
    assert (Preprocess(size=(4, 4)).load(clear) == 1).all()
    assert (Preprocess(size=(4, 4)).load(clear, background=(0, 0, 0)) == -1).all()
    with pytest.raises(ImageError, match="max_pixels"):
        Preprocess().load(jpeg(noise(20, 20)), max_pixels=399)


# --- settings --------------------------------------------------------------------------------------------------


def test_settings_survive_json() -> None:
    for name in ("google", "timm", "huggingface", "torchvision"):
        preset = Preprocess.preset(name, (192, 320))
        again = Preprocess.from_dict(json.loads(json.dumps(preset.to_dict())))
        assert again == preset
        assert hash(again) == hash(preset)
    assert Preprocess() == Preprocess.preset("google")
    assert Preprocess(size=96).size == (96, 96)
    assert Preprocess.preset("timm").resized(96) == Preprocess.preset("timm", 96)
    assert Preprocess.preset("timm")._resized == (248, 248)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Preprocess().size = (1, 1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be"),
        ({"size": (224, 224, 3)}, "size must be"),
        ({"resize": "shortest"}, "did you mean 'short'"),
        ({"interpolation": "cubic"}, "did you mean 'bicubic'"),
        ({"interpolation": "lanczos"}, "needs antialias=True"),
        ({"antialias": 1}, "antialias must be true or false"),
        ({"crop_fraction": 0.0}, r"crop_fraction must be in \(0, 1\]"),
        ({"crop_fraction": 87.5}, r"crop_fraction must be in \(0, 1\]"),
        ({"crop_fraction": True}, r"crop_fraction must be in \(0, 1\]"),
        ({"mean": 0.5}, "mean must be 3 numbers"),
        ({"mean": (0.5, 0.5)}, "mean must be 3 numbers"),
        ({"mean": (0.5,)}, "one length, got 1 and 3"),
        ({"std": (0.5, 0.5, 0.0)}, "std must be above 0"),
        ({"std": (0.5, 0.5, math.nan)}, "std must be 3 numbers"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocess(**settings)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'huggingface'"):
        Preprocess.preset("hugging_face")
    with pytest.raises(ConfigError, match="no field 'crop_pct'"):
        Preprocess.from_dict({"crop_pct": 0.9})
    with pytest.raises(ConfigError, match="did you mean 'interpolation'"):
        Preprocess().replace(interpolate="bicubic")


@pytest.mark.parametrize(
    "image",
    [torch.zeros(3, 4, 4), torch.zeros(4, 4, 3, dtype=torch.uint8), torch.zeros(1, 3, 4, 4, dtype=torch.uint8)],
)
def test_other_than_uint8_rgb_is_sent_through_read_image(image: Tensor) -> None:
    with pytest.raises(ImageError, match="read_image"):
        Preprocess()(image)
