"""Pictures carry what a reader must know."""

import torch

from tests.conftest import tiny
from vitreous.classifier import Classifier
from vitreous.explain import occlusion
from vitreous.pictures.preprocess import Preprocess


def test_every_exported_picture_carries_its_caption(tmp_path):
    clf = Classifier(tiny(), Preprocess.preset("google", size=32), tuple("abcdefg"))
    picture = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    made = occlusion(clf, [picture])
    for word in ("occlusion", "UNTESTED", "p = ", "vitreous"):
        assert word in made.stamp()
    made.save(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 5000
    assert '"method": "occlusion"' in made.to_json()
