"""Configurations: the named variants, and errors that name the way out."""

import pytest

from vitreous.base.errors import ConfigError, VitreousError
from vitreous.config import VARIANTS, ResNetConfig, ViTConfig
from vitreous.skeleton import empty_model

# Parameters at 224x224 and 1000 classes, as timm, torchvision and the papers' code count them.
PARAMETERS = {
    "Ti/16": 5_717_416,
    "S/32": 22_878_952,
    "S/16": 22_050_664,
    "B/32": 88_224_232,
    "B/16": 86_567_656,
    "B/8": 86_576_872,
    "L/32": 306_535_400,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
}


def count(config: ViTConfig) -> int:
    return sum(p.numel() for p in empty_model(config).parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_of_every_variant(name):
    assert count(ViTConfig.from_name(name)) == PARAMETERS[name]


def test_there_are_fourteen_variants():
    assert set(VARIANTS) == set(PARAMETERS)


def test_parameters_of_pretraining_and_other_sizes():
    assert count(ViTConfig.from_name("B/16", num_classes=21843, representation_size=768)) == 103_186_515
    assert count(ViTConfig.from_name("B/16", image_size=384)) == 86_859_496
    assert count(ViTConfig.from_name("L/16", image_size=512)) == 305_174_504
    assert count(ViTConfig.from_name("H/14", image_size=518)) == 633_470_440
    assert count(ViTConfig.from_name("L/16", patch_size=14)) == 304_203_752


def test_running_example():
    config = ViTConfig()
    assert config == ViTConfig.from_name("B/16")
    assert (config.grid, config.num_patches, config.num_tokens, config.head_dim) == ((14, 14), 196, 197, 64)


def test_official_dropout():
    dropped = {name for name in VARIANTS if ViTConfig.from_name(name).dropout_rate == 0.1}
    assert dropped == {"L/16", "H/14", "R50+B/16", "R50+L/32"}


def test_effective_patch_of_hybrids():
    strides = {name: ViTConfig.from_name(name).stride for name in VARIANTS if "+" in name}
    assert strides == {
        "R+Ti/16": (32, 32),
        "R26+S/32": (32, 32),
        "R26+B/32": (32, 32),
        "R50+B/16": (16, 16),
        "R50+L/32": (32, 32),
    }


def test_round_trip_through_plain_values():
    config = ViTConfig.from_name("R50+B/16", image_size=(160, 320), classifier="gap", representation_size=5)
    assert ViTConfig.from_dict(config.to_dict()) == config
    assert config.resnet == ResNetConfig(num_layers=(3, 4, 9))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (dict(image_size=230), "224x224 or 240x240"),
        (dict(image_size=(224, 250)), "224x240 or 224x256"),
        (dict(image_size=8), "16x16"),
        (dict(num_heads=5), "divisible"),
        (dict(classifier="map"), "token, gap"),
        (dict(gelu="relu"), "tanh, erf"),
        (dict(position_resize="cubic"), "google"),
        (dict(dropout_rate=1.0), r"\[0, 1\)"),
        (dict(num_layers=0), "num_layers"),
        (dict(hidden_size=True), "hidden_size"),
        (dict(image_size=(1, 2, 3)), "image_size"),
        (dict(representation_size=0), "representation_size"),
        (dict(resnet=dict(num_layers=(1,), width_factor=0.3)), "32 groups"),
    ],
)
def test_impossible_configurations_say_what_would_do(fields, says):
    with pytest.raises(ConfigError, match=says):
        ViTConfig(**fields)


def test_names_are_forgiving_and_errors_suggest():
    assert ViTConfig.from_name("ViT-B_16") == ViTConfig.from_name("b/16") == ViTConfig.from_name("B/16")
    with pytest.raises(VitreousError, match=r"did you mean 'B/16'.*H/14"):
        ViTConfig.from_name("B/61")
    with pytest.raises(ConfigError, match="did you mean 'num_classes'"):
        ViTConfig.from_name("B/16", num_clases=3)
