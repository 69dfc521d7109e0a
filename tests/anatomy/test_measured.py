"""Measured cost beside the estimate, and the picture of what other resolutions cost."""

import json

import pytest
from typer.testing import CliRunner

from vitreous.anatomy.cost import cost
from vitreous.anatomy.figure import attention_share, crossover_side, draw, save
from vitreous.anatomy.measured import RESET, measure
from vitreous.base.errors import ConfigError, VitreousError
from vitreous.cli.main import app
from vitreous.config import ViTConfig

# So much memory for activations, so little to compute: 2,304 tokens of one narrow block.
MANY_TOKENS = ViTConfig(
    image_size=384,
    patch_size=8,
    hidden_size=96,
    num_layers=1,
    num_heads=1,
    mlp_dim=768,
    num_classes=2,
    classifier="gap",
)


@pytest.mark.skipif(not RESET.exists(), reason="only Linux tells how much memory a process has needed")
def test_memory_is_near_the_estimate() -> None:
    price = cost(MANY_TOKENS, 8)
    measured = measure(MANY_TOKENS, 8, repeats=1)
    assert (measured.batch_size, measured.training) == (8, False)
    assert measured.fastest <= measured.seconds <= measured.slowest
    assert measured.peak_bytes is not None
    assert 0.8 < measured.peak_bytes / price.fused_attention.inference_peak < 1.5
    explicit = price.explicit_attention.inference_peak
    assert measured.peak_bytes < 0.7 * explicit  # no S x S matrix was there


def test_a_measurement_that_fails_says_so() -> None:
    with pytest.raises(ConfigError, match="repeats must be >= 1, got 0"):
        measure(MANY_TOKENS, repeats=0)
    with pytest.raises(VitreousError, match=r"measuring a batch of 1000000000000 failed .*: try a smaller batch"):
        measure(MANY_TOKENS, 10**12)


def test_info_measures_and_draws(tmp_path) -> None:
    words = ["info", "Ti/16", "--image-size", "32", "--measure", "--training", "--plot", str(tmp_path / "cost.svg")]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    forward, step = json.loads(done.stdout)["measured"]
    assert (forward["training"], step["training"], forward["repeats"]) == (False, True, 5)
    assert step["seconds"] > 0 < forward["seconds"]
    drawn = (tmp_path / "cost.svg").read_text()
    assert "S* = 2·D + M = 1,152 tokens" in drawn
    assert "543 px" in drawn
    refused = CliRunner().invoke(app, ["info", "Ti/16", "--training"])
    assert refused.exit_code == 2


@pytest.mark.parametrize("name", ["B/16", "H/14", "R50+B/16"])
def test_attention_is_half_of_the_blocks_at_the_crossover(name: str) -> None:
    config = ViTConfig.from_name(name)
    step = config.stride[0]
    side = round(crossover_side(config) / step) * step
    assert attention_share(cost(config.replace(image_size=side))) == pytest.approx(0.5, abs=0.01)
    assert attention_share(cost(config.replace(image_size=side // 4 // step * step))) < 0.1


def test_an_odd_patch_and_a_wide_image_can_be_drawn(tmp_path) -> None:
    config = ViTConfig(image_size=(30, 60), patch_size=(5, 10), hidden_size=32, num_heads=2, mlp_dim=64, num_layers=2)
    labels = draw(config).axes[0].get_legend_handles_labels()[1]
    assert labels == ["patches 5x10", "patches 10x20", "30x60: 0.000986 GMACs", "attention's products alone"]
    with pytest.raises(ConfigError, match=r"a plot is written as .svg, .png, .pdf, not 'gif'"):
        save(config, tmp_path / "cost.gif")
