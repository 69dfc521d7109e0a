"""What makes training strong: averages, losses, parts, memory, dropout by position; each against its definition."""

import json
import logging
import math

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import tiny, write_pictures
from vitreous.base.errors import ConfigError, WeightsError
from vitreous.classifier import Classifier, load
from vitreous.evaluation.evaluate import evaluate
from vitreous.pictures.preprocess import Preprocess
from vitreous.training.checkpointing import recomputed
from vitreous.training.dropout import DropoutByPosition
from vitreous.training.ema import Average, exchanged
from vitreous.training.losses import count_correct, total_loss
from vitreous.training.model_parts import frozen
from vitreous.training.optimizer import parameter_groups
from vitreous.training.recipe import Recipe
from vitreous.training.run import finetune
from vitreous.training.stream import Positions
from vitreous.training.watch import advise

QUICK = dict(steps=6, batch_size=8, warmup_steps=1, base_lr=0.01, accum_steps=1, progress=False, num_workers=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("data"), {"green": 12, "grey": 10, "red": 11})


@pytest.fixture
def clf():
    return Classifier(tiny(), Preprocess.preset("google", size=32))


@pytest.fixture
def said(caplog, monkeypatch):
    """What goes to the log of the program."""
    monkeypatch.setattr(logging.getLogger("vitreous"), "propagate", True)
    return caplog


def test_t20_average_weights_are_saved_beside_the_raw_ones_and_both_scores_are_listed(clf, data, tmp_path, said):
    result = finetune(clf, data, tmp_path / "out", **QUICK, ema_decay=0.8, eval_every=3)
    path = tmp_path / "out" / "model.safetensors"
    assert {"val_top1", "ema_val_top1", "val_loss", "ema_val_loss"} <= result.log[2].keys()
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["loss"] == result.evaluation.loss != metrics["ema"]["loss"] == result.average.loss
    kinds = {}
    for kind, scored in (("raw", result.evaluation), ("ema", result.average)):
        kinds[kind] = load(path, weights=kind)
        again = evaluate(kinds[kind], data, progress=False, num_workers=0)
        assert again.loss == pytest.approx(scored.loss, abs=1e-6)
        assert kinds[kind].provenance["scores"][kind]["top1"] == scored.top1
    assert not torch.equal(kinds["raw"].model.head.weight, kinds["ema"].model.head.weight)
    said.clear()
    unasked = load(path)
    assert torch.equal(unasked.model.head.weight, kinds["raw"].model.head.weight)
    assert "weights taken: raw, top-1" in said.text
    assert "not taken: ema, top-1" in said.text
    plain = finetune(clf, data, tmp_path / "plain", **QUICK)
    assert plain.average is None
    with pytest.raises(WeightsError, match="holds no ema weights: it was trained without ema_decay"):
        load(tmp_path / "plain" / "model.safetensors", weights="ema")


def test_the_average_follows_its_formula_and_gives_the_weights_back():
    model = torch.nn.Linear(3, 2)
    average = Average(model, decay=0.3)
    by_hand = model.weight.detach().clone()
    for step in range(4):
        with torch.no_grad():
            model.weight.add_(1.0)
        average.update(model, step)
        decay = min(0.3, (1 + step) / (10 + step))
        by_hand = decay * by_hand + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], by_hand)
    own = model.weight.detach().clone()
    with exchanged(model, average.tensors):
        torch.testing.assert_close(model.weight.detach(), by_hand)
    assert torch.equal(model.weight, own)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_by_hand(smoothing):
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(5, 4, generator=generator), torch.tensor([0, 3, 1, 1, 2])
    soft = F.one_hot(labels, 4).double() * (1 - smoothing) + smoothing / 4
    z = logits.double()
    softmax = -(soft * z.log_softmax(-1)).sum()
    sigmoid = -(soft * z.sigmoid().log() + (1 - soft) * (1 - z.sigmoid()).log()).sum()
    for targets in (labels, F.one_hot(labels, 4).float()):
        assert total_loss(logits, targets, "softmax", smoothing).item() == pytest.approx(softmax.item(), rel=1e-6)
        assert total_loss(logits, targets, "sigmoid", smoothing).item() == pytest.approx(sigmoid.item(), rel=1e-6)
        assert count_correct(logits, targets) == (logits.argmax(-1) == labels).sum()


def test_t17_a_zero_head_begins_at_the_loss_of_a_guess(clf, data, tmp_path):
    softmax = finetune(clf, data, tmp_path / "softmax", **QUICK)
    assert softmax.log[0]["loss"] == pytest.approx(math.log(3), abs=1e-6)
    sigmoid = finetune(clf, data, tmp_path / "sigmoid", **QUICK, loss="sigmoid", head_bias=-10.0)
    assert sigmoid.log[0]["loss"] == pytest.approx(math.log1p(math.exp(10)) + 2 * math.log1p(math.exp(-10)), rel=1e-6)
    ten = tiny().reset_head(10)
    loss = total_loss(ten(torch.randn(2, 3, 32, 32)), torch.tensor([4, 7])) / 2
    assert loss.item() == pytest.approx(2.302585, abs=1e-6)


def test_frozen_parts_stay_and_the_rest_learns(clf, data, tmp_path):
    before = {name: tensor.clone() for name, tensor in clf.model.state_dict().items()}
    probe = finetune(clf, data, tmp_path / "probe", "probe", **QUICK)
    for name, tensor in probe.classifier.model.state_dict().items():
        assert torch.equal(tensor, before[name]) != name.startswith("head"), name
    assert all(parameter.requires_grad for parameter in probe.classifier.model.parameters())
    some = finetune(clf, data, tmp_path / "some", **QUICK, freeze=["patch_embedding", "blocks.0", "blocks.1"])
    moved = {n for n, t in some.classifier.model.state_dict().items() if n in before and not n.startswith("head")}
    moved = {name for name in moved if not torch.equal(some.classifier.model.state_dict()[name], before[name])}
    assert {name.split(".")[0] for name in moved} == {"cls_token", "position_embedding", "blocks", "norm"}
    assert {name.split(".")[1] for name in moved if name.startswith("blocks")} == {"2"}
    for parts, says in ((["patch_embeding"], "did you mean 'patch_embedding'"), (["backbone", "head"], "nothing")):
        with pytest.raises(ConfigError, match=says), frozen(clf.model, parts):
            pass


def test_layer_decay_scales_the_rate_by_depth():
    model = tiny()
    groups = parameter_groups(model, Recipe(layer_decay=0.5, weight_decay=0.1, optimizer="adamw"))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scales = {names[id(p)]: group["scale"] for group in groups for p in group["params"]}
    assert len(scales) == len(names)
    wanted = {"patch_embedding.projection.weight": 1 / 16, "position_embedding": 1 / 16, "blocks.0.norm1.bias": 1 / 8}
    wanted |= {"blocks.2.mlp.fc1.weight": 1 / 2, "norm.weight": 1.0, "head.bias": 1.0}
    assert {name: scales[name] for name in wanted} == wanted
    assert all(group["weight_decay"] == (0.1 if i % 2 == 0 else 0.0) for i, group in enumerate(groups))
    with pytest.raises(ConfigError, match="layer_decay needs a model with blocks, and Linear has none"):
        parameter_groups(torch.nn.Linear(2, 2), Recipe(layer_decay=0.5))


def test_blocks_computed_again_give_the_same_gradient_with_dropout():
    model = tiny(dropout_rate=0.3, attention_dropout_rate=0.2, stochastic_depth_rate=0.4).train()
    images = torch.randn(4, 3, 32, 32)
    gradients = []
    for on in (False, True):
        model.zero_grad()
        with recomputed(model, on):
            with DropoutByPosition([3, 1, 4, 15]):
                logits = model(images)
            logits.square().sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-6)
    assert "forward" not in vars(model.blocks[0])


def test_dropout_depends_on_the_picture_alone():
    model = tiny(dropout_rate=0.3, attention_dropout_rate=0.2, stochastic_depth_rate=0.4).train()
    images, seeds = torch.randn(6, 3, 32, 32), [11, 22, 33, 44, 55, 66]

    def run(rows):
        with DropoutByPosition([seeds[i] for i in rows]):
            return model(images[rows])

    whole = run(list(range(6)))
    torch.testing.assert_close(torch.cat([run([0, 1, 2, 3]), run([4, 5])]), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run([5, 2, 0]), whole[[5, 2, 0]], rtol=1e-5, atol=1e-5)
    assert (whole - model.eval()(images)).abs().max() > 0.1


def test_its_numbers_are_uniform_and_unrelated():
    mode = DropoutByPosition([1, 2, 2**62 + 3])
    numbers = [mode._numbers(torch.Size([3, 100_000])).double() / 2**32 for _ in range(2)]
    rows = torch.cat(numbers)  # (6, n): three pictures, two calls
    assert (rows.mean(dim=1) - 0.5).abs().max() < 5 * 0.2887 / math.sqrt(100_000)
    assert (rows.var(dim=1) - 1 / 12).abs().max() < 1e-3
    pairs = torch.cat([rows, rows.roll(1, dims=1)]).corrcoef()
    assert (pairs - torch.eye(12)).abs().max() < 5 / math.sqrt(100_000)
    with mode:
        kept = F.dropout(torch.ones(3, 100_000), 0.25)
    assert kept.unique().tolist() == pytest.approx([0, 4 / 3])
    assert kept.mean().item() == pytest.approx(1.0, abs=0.01)


def test_positions_are_those_of_one_process_whatever_the_parts():
    whole = list(Positions(2, 5, 12, 1))
    assert whole == list(range(24, 60))
    shares = [list(Positions(2, 5, 12, 2, rank, 3)) for rank in range(3)]
    assert sorted(p for share in shares for p in share) == whole
    assert shares[1][:4] == [26, 27, 32, 33]
    with pytest.raises(ConfigError, match="multiple of 8"):
        Positions(0, 1, 12, 4, 0, 2)


def test_a_loss_that_grows_brings_advice_once(said):
    recipe = Recipe(steps=100, warmup_steps=0, batch_size=64, base_lr=0.3, grad_clip=0.0)
    log = []
    for step in range(20):
        log.append({"step": step, "loss": 2.0 if step < 8 else 30.0})
        advise(log, recipe)
    (record,) = said.records
    for words in ("grown from 2 to 7.6 by step 8", "try 0.1", "ask for 0.0037", "warmup_steps=10", "grad_clip=1.0"):
        assert words in record.getMessage(), words


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_t23_large_activations_under_autocast_stay_finite(dtype):
    model = tiny().train()
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight[:16] *= 1000  # the queries of one head
    images = torch.randn(4, 3, 32, 32)
    for seeds in (None, [1, 2, 3, 4]):
        model.blocks[1].attention.dropout_rate = 0.0 if seeds is None else 0.1
        with torch.autocast("cpu", dtype):
            if seeds is None:
                logits = model(images)
            else:
                with DropoutByPosition(seeds):
                    logits = model(images)
        assert logits.isfinite().all()
    loss = F.cross_entropy(logits.float(), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_curves_for_tensorboard(clf, data, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = finetune(clf, data, tmp_path / "out", **QUICK, tensorboard=True)
    curves = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    curves.Reload()
    assert [point.value for point in curves.Scalars("loss")] == pytest.approx([e["loss"] for e in result.log])
    assert {"accuracy", "lr", "grad_norm", "images_per_s"} <= set(curves.Tags()["scalars"])
    speeds = [json.loads(line) for line in (tmp_path / "out" / "speed.jsonl").read_text().splitlines()]
    assert [speed["step"] for speed in speeds] == list(range(6))
    assert all(speed["images_per_s"] > 0 for speed in speeds)
