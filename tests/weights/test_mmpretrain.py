"""MMPretrain's names and arithmetic, against a model of its structure; files as its runner saves them."""

import pytest
import torch
from torch import nn

from tests.conftest import randomise, tiny
from tests.weights.peers import assert_near, assert_same_tensors, classifier, images
from vitreous.base.errors import WeightsError
from vitreous.classifier import Classifier, load
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights.convert import convert


class Layer(nn.Module):
    """One encoder layer; attribute names are OpenMMLab's."""

    def __init__(self, width, hidden, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        first = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.0))
        self.ffn = nn.ModuleDict({"layers": nn.Sequential(first, nn.Linear(hidden, width), nn.Dropout(0.0))})
        self.heads = heads

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.attn["qkv"](self.ln1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*qkv)
        x = x + self.attn["proj"](y.transpose(1, 2).reshape(b, n, d))
        return x + self.ffn["layers"](self.ln2(x))


class Theirs(nn.Module):
    """A classifier of the structure of MMPretrain's `ImageClassifier`: backbone and head."""

    def __init__(self, config, average=False):
        super().__init__()
        c, self.average = config, average
        backbone = nn.Module()
        embed = nn.Conv2d(c.in_channels, c.hidden_size, c.patch_size, c.patch_size)
        backbone.patch_embed = nn.ModuleDict({"projection": embed})
        backbone.cls_token = nn.Parameter(torch.zeros(1, 1, c.hidden_size))
        backbone.pos_embed = nn.Parameter(torch.zeros(1, c.num_patches + 1, c.hidden_size))
        backbone.layers = nn.ModuleList(Layer(c.hidden_size, c.mlp_dim, c.num_heads) for _ in range(c.num_layers))
        setattr(backbone, "ln2" if average else "ln1", nn.LayerNorm(c.hidden_size, eps=1e-6))
        self.backbone, self.head = backbone, nn.Module()
        if average:
            self.head.fc = nn.Linear(c.hidden_size, c.num_classes)
            return
        self.head.layers = nn.Sequential()
        if c.representation_size:
            self.head.layers.add_module("pre_logits", nn.Linear(c.hidden_size, c.representation_size))
            self.head.layers.add_module("act", nn.Tanh())
        self.head.layers.add_module("head", nn.Linear(c.representation_size or c.hidden_size, c.num_classes))

    def forward(self, x):
        b = self.backbone
        x = b.patch_embed["projection"](x).flatten(2).transpose(1, 2)
        x = torch.cat([b.cls_token.expand(len(x), -1, -1), x], dim=1) + b.pos_embed
        for layer in b.layers:
            x = layer(x)
        if self.average:
            return self.head.fc(b.ln2(x[:, 1:].mean(1)))
        return self.head.layers(b.ln1(x)[:, 0])


def theirs(config, average=False):
    return randomise(Theirs(config, average), seed=1).eval()


CASES = [
    ({}, False),
    ({"image_size": (32, 48)}, False),
    ({"representation_size": 24}, False),
    ({"classifier": "gap", "gap_class_token": True, "norm_after_pooling": True}, True),
]


@pytest.mark.parametrize("overrides, average", CASES)
def test_their_files_give_their_logits(overrides, average, tmp_path):
    config = tiny(gelu="erf", **overrides).config
    model = theirs(config, average)
    state = {"meta": {"epoch": 3, "mmpretrain_version": "1.2.0"}, "state_dict": model.state_dict()}
    torch.save(state, tmp_path / "epoch_3.pth")
    clf = load(tmp_path / "epoch_3.pth", image_size=config.image_size, num_heads=config.num_heads)
    assert clf.provenance["family"] == "mmpretrain"
    assert clf.preprocess == Preprocess.preset("mmpretrain", size=config.image_size)
    with torch.inference_mode():
        x = images(config)
        assert_near(clf.model(x), model(x))


@pytest.mark.parametrize("overrides, average", CASES)
def test_what_is_written_has_their_names_and_goes_there_and_back(overrides, average, tmp_path):
    clf = classifier("mmpretrain", **overrides)
    convert(clf, tmp_path / "ours.pth", to="mmpretrain")
    written = torch.load(tmp_path / "ours.pth", weights_only=True)
    model = theirs(clf.config, average)
    assert written.keys() == model.state_dict().keys()
    model.load_state_dict(written)
    with torch.inference_mode():
        x = images(clf.config)
        assert_near(model(x), clf.model(x))
    back = load(tmp_path / "ours.pth", image_size=clf.config.image_size, num_heads=3)
    assert_same_tensors(clf.model.state_dict(), back.model.state_dict())


def test_a_backbone_alone_and_one_that_is_no_classic_vit(tmp_path):
    config = tiny(gelu="erf").config
    model = theirs(config)
    inside = {name.removeprefix("backbone."): t for name, t in model.state_dict().items() if "head" not in name}
    torch.save(inside, tmp_path / "backbone.pth")
    clf = load(tmp_path / "backbone.pth", num_classes=0, num_heads=3)
    assert isinstance(clf, Classifier)
    assert clf.model.head is None
    twice = model.state_dict() | {f"backbone.ln2.{part}": torch.ones(48) for part in ("weight", "bias")}
    torch.save({"state_dict": twice}, tmp_path / "twice.pth")
    with pytest.raises(WeightsError, match="normalises before and after"):
        load(tmp_path / "twice.pth", num_heads=3)
