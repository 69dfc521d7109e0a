"""The stream of training pictures: a function of the position, whoever asks for it and from where."""

import pytest
import torch

from tests.conftest import write_pictures
from vitreous.base.errors import ImageError
from vitreous.data.augment import AUGREG, Augmentation
from vitreous.data.loading import EvaluationPictures, TrainingPictures, batches
from vitreous.data.mixing import Mixing
from vitreous.data.open import open_data
from vitreous.pictures.preprocess import Preprocess

PREPROCESS = Preprocess.preset("google", size=16)
MIXINGS = {"mixup": (0.5, 0.0), "cutmix": (0.0, 1.0), "both": (0.5, 1.0)}


@pytest.fixture
def split(tmp_path):
    return open_data(write_pictures(tmp_path, {"a": 5, "b": 4})).split("all")


def mixing(batch_size=8, kind="both", seed=3):
    return Mixing(batch_size, 2, *MIXINGS[kind], seed)


@pytest.mark.parametrize(
    ("augment", "preset"),
    [("trivial", "google"), ("rand", "timm"), ("strong2", "google"), ("mixed and erased", "timm")],
)
def test_any_workers_and_any_start_give_the_same_pictures(split, augment, preset):
    mixed = augment == "mixed and erased"
    preprocess = Preprocess.preset(preset, size=16)
    how = Augmentation(preprocess, (0.2, 1.0), True, "none" if mixed else augment, erasing=0.5 * mixed)
    pictures = TrainingPictures(split, how, seed=3, mixing=mixing() if mixed else None)

    def stream(positions, workers):
        found = list(batches(pictures, positions, 4, workers))
        return torch.cat([images for images, _ in found]), torch.cat([targets for _, targets in found])

    state = torch.get_rng_state()
    images, targets = stream(range(24), 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert images.shape == (24, 3, 16, 16)
    for part, workers in ((range(24), 2), (range(12, 24), 0), (range(3, 24, 2), 0)):
        there = stream(part, workers)
        assert torch.equal(there[0], images[part.start :: part.step])
        assert torch.equal(there[1], targets[part.start :: part.step])
    assert not torch.equal(images[:9], images[9:18])  # another epoch, other crops


def test_every_epoch_has_every_picture_once_in_another_order(split):
    pictures = TrainingPictures(split, Augmentation(PREPROCESS, None, False), seed=0)
    epochs = [[pictures[9 * epoch + place] for place in range(9)] for epoch in range(2)]
    orders = []
    for epoch in epochs:
        found = [tuple(image.flatten()[:50].tolist()) for image, _ in epoch]
        assert len(set(found)) == 9
        orders.append(found)
    assert set(orders[0]) == set(orders[1])
    assert orders[0] != orders[1]


@pytest.mark.parametrize("preset", ["google", "huggingface", "torchvision"])
def test_without_randomness_it_is_the_picture_as_it_is_evaluated(split, preset):
    preprocess = Preprocess.preset(preset, size=16).replace(crop_fraction=1.0)
    pictures = TrainingPictures(split, Augmentation(preprocess, None, False), seed=0)
    seen = torch.stack(sorted((pictures[p][0] for p in range(9)), key=lambda x: x.sum().item()))
    evaluated = torch.stack(sorted((preprocess.load(split.open(i)) for i in range(9)), key=lambda x: x.sum().item()))
    step = max(1 / (255 * s) for s in preprocess.std)  # torchvision rounds, twice, to 8 bits
    torch.testing.assert_close(seen, evaluated, atol=0 if preprocess.antialias else 1.01 * step, rtol=0)


def test_flip_is_half_of_the_time_and_can_be_off(split):
    plain = TrainingPictures(split, Augmentation(PREPROCESS, None, False), seed=0)
    flipping = TrainingPictures(split, Augmentation(PREPROCESS, None, True), seed=0)
    flips = 0
    for position in range(200):
        before, after = plain[position][0], flipping[position][0]
        if not torch.equal(before, after):
            assert torch.equal(before, after.flip(-1))
            flips += 1
    assert 70 <= flips <= 130


def test_erasing_replaces_a_rectangle_by_noise(split):
    plain = TrainingPictures(split, Augmentation(PREPROCESS, None, False), seed=0)
    erased = TrainingPictures(split, Augmentation(PREPROCESS, None, False, erasing=0.5), seed=0)
    areas = []
    for position in range(100):
        changed = (plain[position][0] != erased[position][0]).all(dim=0)
        if changed.any():
            rows, columns = changed.any(1).nonzero(), changed.any(0).nonzero()
            assert changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
            areas.append(changed.float().mean().item())
    assert 30 <= len(areas) <= 70
    assert max(areas) <= 0.4


def test_mixup_is_the_blend_of_neighbours_in_the_batch(split):
    single = TrainingPictures(split, Augmentation(PREPROCESS), seed=3)
    mixed = TrainingPictures(split, Augmentation(PREPROCESS), seed=3, mixing=mixing(8, "mixup"))
    shares = []
    for step in range(4):
        for place in range(8):
            position = 8 * step + place
            image, target = mixed[position]
            own, other = single[position], single[8 * step + (place - 1) % 8]
            # From the pixels alone: x = a own + (1 - a) other.
            difference = own[0] - other[0]
            a = ((image - other[0]) * difference).sum() / difference.square().sum()
            torch.testing.assert_close(image, a * own[0] + (1 - a) * other[0], atol=1e-5, rtol=0)
            by_hand = torch.zeros(2)
            by_hand[own[1]] += a
            by_hand[other[1]] += 1 - a
            torch.testing.assert_close(target, by_hand, atol=1e-4, rtol=0)
            shares.append(round(a.item(), 4))
    assert all(0.5 <= a <= 1 for a in shares)
    assert [len(set(shares[8 * step : 8 * step + 8])) for step in range(4)] == [1] * 4  # drawn once a batch
    assert len(set(shares)) == 4


def test_cutmix_puts_a_rectangle_in_and_counts_its_area(split):
    single = TrainingPictures(split, Augmentation(PREPROCESS), seed=3)
    mixed = TrainingPictures(split, Augmentation(PREPROCESS), seed=3, mixing=mixing(4, "cutmix"))
    areas = set()
    for position in range(40):
        image, target = mixed[position]
        own, other = single[position], single[position // 4 * 4 + (position - 1) % 4]
        kept = (image == own[0]).all(dim=0)
        assert torch.equal(image[:, ~kept], other[0][:, ~kept])
        share = kept.float().mean().item()
        if own[1] != other[1]:
            assert target[own[1]].item() == pytest.approx(share, abs=0.02)  # some pixels may be equal in both
        assert target.sum().item() == pytest.approx(1)
        areas.add(round(share, 2))
    assert len(areas) >= 5


def test_both_take_turns():
    image = torch.zeros(3, 16, 16)
    mix = mixing(1, "both")
    blended = [bool(((x > 0) & (x < 1)).any()) for x, _ in (mix(p, (image, 0), (image + 1, 1)) for p in range(60))]
    assert 15 <= sum(blended) <= 45


def test_augreg_levels_grow():
    strengths = list(AUGREG.values())
    assert list(AUGREG) == ["light1", "light2", "medium1", "medium2", "strong1", "strong2"]
    assert strengths == sorted(strengths)


def test_evaluation_sees_each_picture_once_in_order(split):
    found = list(batches(EvaluationPictures(split, PREPROCESS.load), range(9), 4, 1))
    assert [len(labels) for _, labels in found] == [4, 4, 1]
    assert torch.cat([labels for _, labels in found]).tolist() == split.labels.tolist()


def damage(split, index):
    broken = split.root / split.names[index]
    broken.write_bytes(broken.read_bytes()[:60])
    return broken


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_picture_is_an_error_with_its_name(split, workers):
    broken = damage(split, 6)
    with pytest.raises(ImageError, match=rf"b/{broken.name}") as error:
        list(batches(EvaluationPictures(split, PREPROCESS.load), range(9), 4, workers))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [None, "mixup"])
def test_a_broken_picture_is_skipped_and_never_replaced(split, workers, kind):
    mix = None if kind is None else mixing(4, kind)
    pictures = TrainingPictures(split, Augmentation(PREPROCESS, None, False), seed=0, mixing=mix)
    alone = TrainingPictures(split, Augmentation(PREPROCESS, None, False), seed=0)
    before = list(batches(pictures, range(36), 4, 0))
    whole = [alone[position] for position in range(36)]
    broken = damage(split, 6)
    skipped = []
    after = list(batches(pictures, range(36), 4, workers, skipped))
    gaps = [position for position in range(36) if not isinstance(alone[position], tuple)]
    assert len(gaps) == 4  # once an epoch
    assert [entry.index for entry in skipped] == [6] * 4
    assert all(broken.name in str(entry.error) for entry in skipped)
    for step, ((images, targets), (old_images, old_targets)) in enumerate(zip(after, before, strict=True)):
        places = [place for place in range(4) if 4 * step + place not in gaps]
        assert len(images) == len(places)
        for row, place in enumerate(places):
            if kind and 4 * step + (place - 1) % 4 in gaps:  # what it would have been mixed with is not there
                assert torch.equal(images[row], whole[4 * step + place][0])
                assert targets[row].max() == 1
            else:
                assert torch.equal(images[row], old_images[place])
                assert torch.equal(targets[row], old_targets[place])


def test_a_batch_of_broken_pictures_is_empty(split):
    for index in range(9):
        damage(split, index)
    skipped = []
    ((images, targets),) = batches(EvaluationPictures(split, PREPROCESS.load), range(3), 4, 0, skipped)
    assert (images.shape, targets.shape, len(skipped)) == ((0,), (0,), 3)
