"""Would a model with random weights give the same map? Then the map is not about what was learned.

Source: Adebayo et al. 2018 ("Sanity Checks for Saliency Maps"), cascading randomisation. That a map
changes does not prove it right (Binder et al. 2022), so nothing here is ever called passed.
"""

import copy
import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.base.errors import ConfigError
from vitreous.base.files import cache_folder, write_text
from vitreous.base.progress import Advance
from vitreous.base.seeds import derive
from vitreous.base.statistics import spearman, student
from vitreous.explain.record import Map
from vitreous.model import VisionTransformer


@dataclass(frozen=True)
class Randomisation:
    """Rank correlation of a method's maps with those after randomising the weights, for one model and method.

    Args:
        stages: what is random from each stage on, the last being everything.
        correlation: mean signed correlation at each stage.
        absolute: mean absolute correlation at each stage.
        low: of the 95 % interval of the mean at the last stage.
        high: its other end.
        n: pictures.
        seeds: random models.
    """

    stages: tuple[str, ...]
    correlation: tuple[float, ...]
    absolute: tuple[float, ...]
    low: float
    high: float
    n: int
    seeds: int

    @property
    def end(self) -> float:
        """Mean correlation with the maps of the wholly random model."""
        return self.correlation[-1]

    def failed(self, limit: float = 0.3) -> bool:
        """Whether the maps are too much alike to be about the weights."""
        return self.low > limit

    def __str__(self) -> str:
        said = "fails" if self.failed() else "not rejected"
        return (
            f"{said}: rho {self.end:+.2f} ({self.low:+.2f} to {self.high:+.2f}), {self.n} pictures x {self.seeds} seeds"
        )


def randomisation(
    explanation: Map,
    *,
    seeds: int = 3,
    every_stage: bool = False,
    cache: bool = False,
    advance: Advance | None = None,
) -> Randomisation:
    """Compare a method's maps with those that it makes of ever more random models.

    From the head down to the embeddings, each module's weights are drawn anew, normal with the mean
    and the spread that they had, so that activations keep their scale; each module has a seed of its own.

    Args:
        explanation: maps of at least 8 pictures for a judgement; fewer are measured all the same.
        seeds: random models.
        every_stage: after each module, not only when all are random.
        cache: keep the result on the disk, by the hash of weights, pictures, method and settings.
        advance: called with 1 after each random model.

    Raises:
        ConfigError: a map that cannot be made again, because it came from elsewhere.
    """
    if explanation.compute is None:
        raise ConfigError(f"the map {explanation.method!r} came from elsewhere: it cannot be made for a random model")
    place = _place(explanation, seeds, every_stage) if cache else None
    if place is not None and place.exists():
        stored = json.loads(place.read_text(encoding="utf-8"))
        lists = {key: tuple(value) for key, value in stored.items() if isinstance(value, list)}
        return Randomisation(**(stored | lists))
    question = explanation.question
    stages: list[str] = []
    found: list[list[Tensor]] = []
    for seed in range(seeds):
        rows, stages = [], []
        for stage, model in cascade(question.model, seed) if every_stage else [untrained(question.model, seed)]:
            stages.append(stage)
            maps, _ = _again(explanation, model, seed)
            pairs = zip(explanation.values, maps, strict=True)
            rows.append(torch.tensor([spearman(a, b) for a, b in pairs], dtype=torch.float64))  # (B,)
            if advance is not None:
                advance(1)
        found.append(rows)
    rho = torch.stack([torch.stack(rows) for rows in found])  # (seeds, stages, B)
    made = _summary(tuple(stages), rho)
    if place is not None:
        write_text(place, json.dumps(asdict(made)))
    return made


def cascade(model: VisionTransformer, seed: int) -> Iterator[tuple[str, VisionTransformer]]:
    """One copy of the model, ever more random: head, last block ... first block, patch embedding, positions."""
    model = copy.deepcopy(model)
    for stage, parameters in _parts(model):
        generator = torch.Generator().manual_seed(derive(seed, "randomisation", stage))
        with torch.no_grad():
            for p in parameters:
                noise = torch.randn(p.shape, generator=generator).to(p)
                p.copy_(p.mean() + noise * (p.std() if p.numel() > 1 else 0.0))
        yield stage, model


def untrained(model: VisionTransformer, seed: int) -> tuple[str, VisionTransformer]:
    """The last stage of the cascade: every weight is random."""
    return deque(cascade(model, seed), maxlen=1)[0]


def _parts(model: VisionTransformer) -> Iterator[tuple[str, list[nn.Parameter]]]:
    def of(*modules: nn.Module | None) -> list[nn.Parameter]:
        return [p for module in modules if module is not None for p in module.parameters()]

    yield "head", of(model.head, model.pre_logits, model.norm)
    for i in reversed(range(len(model.blocks))):
        yield f"block {i}", of(model.blocks[i])
    yield "patch embedding", of(model.patch_embedding, model.stem)
    tokens = [model.position_embedding, *([] if model.cls_token is None else [model.cls_token])]
    yield "positions and CLS", tokens


def _again(explanation: Map, model: VisionTransformer, seed: int) -> tuple[Tensor, object]:
    """The same method, pictures and classes with another model."""
    assert explanation.compute is not None
    if explanation.method == "noise":  # with the same noise it would trivially agree with itself
        generator = torch.Generator().manual_seed(derive(seed, "fresh noise"))
        return torch.rand(explanation.values.shape, generator=generator), None
    return explanation.compute(explanation.question.of(model))


def _summary(stages: tuple[str, ...], rho: Tensor) -> Randomisation:
    """rho (seeds, stages, B); NaN where a map is constant: it agrees with nothing."""
    rho = rho.nan_to_num(0.0)
    end = rho[:, -1].mean(dim=0)  # (B,): pictures are the independent units, seeds are averaged first
    low, high = student(end)
    return Randomisation(
        stages=stages,
        correlation=tuple(rho.mean(dim=(0, 2)).tolist()),
        absolute=tuple(rho.abs().mean(dim=(0, 2)).tolist()),
        low=low,
        high=high,
        n=rho.shape[2],
        seeds=rho.shape[0],
    )


def _place(explanation: Map, seeds: int, every_stage: bool) -> Path:
    """Where the result is kept."""
    digest = hashlib.blake2b(digest_size=16)
    question = explanation.question
    for tensor in (*question.model.state_dict().values(), question.images, question.asked()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    settings = dict(explanation.settings)
    digest.update(json.dumps([settings, question.score, seeds, every_stage], sort_keys=True, default=str).encode())
    return cache_folder("randomisation") / f"{explanation.method}-{digest.hexdigest()}.json"
