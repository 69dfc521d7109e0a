"""A ResNet beside the ViT: torchvision's own, and trained by the same loop on the same pictures."""

import pytest
import torch
from torchvision.models import resnet18

from scripts.studies.cnn import RESNET18, resnet, train_cnn
from tests.conftest import write_pictures
from vitreous.base.errors import ConfigError
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.recipe import Recipe


def test_it_is_torchvisions_resnet18():
    torch.manual_seed(0)
    ours, theirs = resnet(10).eval(), resnet18(num_classes=10).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("blocks, width", [((1,), 64), ((1, 1), 128), ((1, 2, 1), 256)])
def test_stages_can_be_left_out(blocks, width):
    model = resnet(3, blocks, small_images=True)
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 3)
    assert model.fc.in_features == width
    convolutions = [name for name in model.state_dict() if "conv" in name and name.endswith("weight")]
    assert len(convolutions) == 1 + 2 * sum(blocks)
    side = []
    model.avgpool.register_forward_hook(lambda module, inputs, output: side.append(inputs[0].shape[-1]))
    model(torch.zeros(2, 3, 16, 16))
    assert side == [16 // 2 ** (len(blocks) - 1)]  # nothing is reduced before the first stage
    with pytest.raises(ConfigError, match="one to four"):
        resnet(3, (*RESNET18, 1))


def test_it_learns_by_the_same_loop(tmp_path):
    data = write_pictures(tmp_path / "data", {"a": 10, "b": 10, "c": 10}, size=(16, 16))
    recipe = Recipe(
        steps=30, warmup_steps=3, batch_size=8, optimizer="adamw", base_lr=3e-3, crop_area=None, val_fraction=0.3
    )
    how = dict(preprocess=Preprocess.preset("google", size=16), blocks=(1,), num_workers=0, progress=False)
    model, found = train_cnn(data, tmp_path / "run", recipe, **how)
    assert found > 0.8  # of 9; by chance a third
    again, same = train_cnn(data, tmp_path / "again", recipe, **how)
    assert same == found
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
