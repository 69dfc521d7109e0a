"""Position resizing: the arithmetic of each family, from any grid to any grid."""

import numpy as np
import pytest
import torch

from tests.conftest import shared
from vitreous.base.errors import ConfigError
from vitreous.positions import MODES, resize_positions

# The first values of a ramp 0 ... 13 resized from 14 to 24: each family has its own.
RAMP = {
    "google": [0, 13 / 23, 26 / 23, 39 / 23],
    "timm_npz": [0, 0.375, 0.9583, 1.5417],
    "huggingface": [-0.0979, 0.2944, 0.9388],
    "timm": [-0.0777, 0.2812, 0.9567],
    "torchvision": [0, 0.4691, 1.1724],
    "dino": [-0.0982, 0.2913, 0.9301],
}


@pytest.mark.parametrize("mode", MODES)
def test_ramp(mode):
    ramp = torch.arange(14.0).repeat(14).reshape(1, 196, 1)
    resized = resize_positions(ramp, (14, 14), (24, 24), prefix=0, mode=mode).reshape(24, 24)
    assert resized[5, : len(RAMP[mode])].tolist() == pytest.approx(RAMP[mode], abs=5e-5)
    if mode == "google":  # exact: corner cells stay on the corners
        assert resized[5].tolist() == pytest.approx([k * 13 / 23 for k in range(24)], abs=1e-6)


def test_golden_resizes():
    golden = np.load(shared("golden/posembed_resize.npz"))
    pairs = sorted({name.split("/")[0] for name in golden.files})
    assert len(pairs) >= 2
    for pair in pairs:
        old, new = map(int, pair.split("to"))
        for prefix, before, after in ((1, "in", "out"), (0, "gap_in", "gap_out")):
            if f"{pair}/{before}" not in golden.files:
                continue
            positions = torch.from_numpy(golden[f"{pair}/{before}"])
            wanted = golden[f"{pair}/{after}"]
            resized = resize_positions(
                positions.reshape(1, -1, positions.shape[-1]), (old, old), (new, new), prefix=prefix
            )
            np.testing.assert_allclose(resized[0].numpy(), wanted.reshape(-1, wanted.shape[-1]), atol=1e-6, rtol=0)


def test_same_as_timm_and_transformers_and_torchvision():
    from timm.layers import resample_abs_pos_embed
    from torchvision.models.vision_transformer import interpolate_embeddings

    positions = torch.randn(1, 1 + 36, 8)
    ours = resize_positions(positions, (6, 6), (9, 4), prefix=1, mode="timm")
    torch.testing.assert_close(ours, resample_abs_pos_embed(positions, [9, 4]), atol=2e-6, rtol=0)
    state = {"encoder.pos_embedding": positions.clone()}
    theirs = interpolate_embeddings(image_size=160, patch_size=16, model_state=state)["encoder.pos_embedding"]
    ours = resize_positions(positions, (6, 6), (10, 10), prefix=1, mode="torchvision")
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


def test_same_as_transformers():
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=96)
    embeddings = ViTModel(config).embeddings
    torch.nn.init.normal_(embeddings.position_embeddings)
    theirs = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 32, 8), height=64, width=128)
    ours = resize_positions(embeddings.position_embeddings, (6, 6), (4, 8), prefix=1, mode="huggingface")
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_any_grid_and_the_class_row_stays(mode):
    positions = torch.randn(1, 1 + 16, 5, dtype=torch.float32)
    resized = resize_positions(positions, (2, 8), (4, 4), prefix=1, mode=mode)
    assert torch.equal(resized[:, 0], positions[:, 0])
    assert not torch.allclose(resized, positions)  # as many rows, but another shape: never taken over as they are
    many = torch.randn(1, 196, 3)
    assert not torch.allclose(resize_positions(many, (14, 14), (7, 28), prefix=0, mode=mode), many)
    assert resize_positions(positions, (2, 8), (2, 8), prefix=1, mode=mode) is positions
    assert resize_positions(positions.bfloat16(), (2, 8), (3, 3), prefix=1, mode=mode).dtype == torch.bfloat16


def test_the_prefix_is_stated_and_not_guessed():
    with pytest.raises(ConfigError, match="197 rows expected"):
        resize_positions(torch.randn(1, 196, 4), (14, 14), (7, 7), prefix=1)
    with pytest.raises(ConfigError, match="unknown position resize mode"):
        resize_positions(torch.randn(1, 4, 4), (2, 2), (3, 3), prefix=0, mode="nearest")
