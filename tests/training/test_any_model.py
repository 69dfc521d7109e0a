"""The loop trains whatever makes logits of images, running statistics included."""

import pytest
import torch
from torch import nn

from tests.conftest import write_pictures
from vitreous.data.open import open_data
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.loop import How, Loop
from vitreous.training.recipe import Recipe


def test_a_cnn_is_trained_and_resumed_with_its_running_statistics(tmp_path, monkeypatch):
    split = open_data(write_pictures(tmp_path / "data", {"a": 6, "b": 6})).split("all")
    recipe = Recipe(steps=6, batch_size=4, warmup_steps=1, base_lr=0.01, checkpoint_every=2)

    def loop(name):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(8, 2)),
        )
        (tmp_path / name).mkdir(exist_ok=True)
        preprocess = Preprocess.preset("torchvision", size=32)
        return Loop(
            model=model, split=split, preprocess=preprocess, recipe=recipe, out=tmp_path / name, identity={},
            evaluate=dict, how=How(resume=True, num_workers=0, progress=False),
        )  # fmt: skip

    whole = loop("whole")
    whole.run()
    half = loop("parts")
    learning_rate = Loop._learning_rate

    def power_cut(self, step):
        if step == 3:
            raise OSError("power cut")
        return learning_rate(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_learning_rate", power_cut)
        with pytest.raises(OSError, match="power cut"):
            half.run()
    resumed = loop("parts")
    resumed.run()
    state = whole.model.state_dict()
    assert state["1.num_batches_tracked"] == 6
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
