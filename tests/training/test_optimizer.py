"""Twelve official fine-tuning steps, and what the optimisers promise."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.conftest import shared, tiny
from vitreous.training.optimizer import Momentum, clip_global_norm, make_optimizer
from vitreous.training.recipe import Recipe
from vitreous.training.schedule import learning_rate
from vitreous.weights import google


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_twelve_official_finetuning_steps(dtype):
    golden = np.load(shared("golden/finetune.npz"))
    model = google.read(shared("golden/token.params.npz")).build("token").reset_head(7).train()
    recipe = Recipe(steps=12, warmup_steps=3, base_lr=0.03, momentum_dtype=dtype, batch_size=8)
    optimizer = make_optimizer(model, recipe)
    losses, norms = [], []
    for step in range(12):
        images = torch.from_numpy(golden["images_nhwc"][step]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(golden["labels"][step]).long()
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = learning_rate(
            step, steps=12, base=0.03, warmup_steps=3
        )
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        norms.append(clip_global_norm(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(losses, golden[f"{dtype}/losses"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(norms, golden[f"{dtype}/grad_norms"], rtol=1e-4)
    head = golden[f"{dtype}/final/head/kernel"]
    np.testing.assert_allclose(model.head.weight.detach().T.numpy(), head, atol=1e-4)


def test_momentum_is_torch_sgd_where_both_exist():
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizers = [
        Momentum([{"params": list(ours.parameters()), "weight_decay": 0.1}], lr=0.1, momentum=0.9),
        torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    ]
    for _ in range(5):
        x = torch.randn(4, 5)
        for layer, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_clipping_scales_all_gradients_to_the_limit():
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(8, 4)).sum().backward()
    before = [p.grad.clone() for p in layer.parameters()]
    norm = clip_global_norm(layer.parameters(), 1.0)
    assert norm.item() == pytest.approx(torch.cat([g.flatten() for g in before]).norm().item())
    for p, g in zip(layer.parameters(), before, strict=True):
        torch.testing.assert_close(p.grad, g / norm)
    again = clip_global_norm(layer.parameters(), 5.0)  # below the limit: untouched
    assert again.item() == pytest.approx(1.0)
    clip_global_norm(layer.parameters(), 0.0)
    torch.testing.assert_close(layer.weight.grad, before[0] / norm)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_is_on_the_kernels_alone(optimizer):
    model = tiny(representation_size=8)
    groups = make_optimizer(model, Recipe(optimizer=optimizer, weight_decay=0.3)).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {names[id(p)] for p in groups[0]["params"]}
    assert (groups[0]["weight_decay"], groups[1]["weight_decay"]) == (0.3, 0.0)
    assert len(groups[0]["params"]) + len(groups[1]["params"]) == len(names)
    layer = [
        f"blocks.{i}.{n}.weight" for i in range(3) for n in ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")
    ]
    assert decayed == {"patch_embedding.projection.weight", "pre_logits.weight", "head.weight", *layer}
