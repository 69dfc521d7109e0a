"""What a look inside costs over the plain answer: attention of all layers, and occlusion of every patch.

Attention beside transformers, whose eager attention keeps whole matrices; occlusion beside captum,
on the same model and the same windows. What is compared runs in turn in one process.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Case, Report, Sample, memory_peak, run_cases

BATCH = 8
DINOV2 = Path(__file__).parents[1] / "../shared/weights/dinov2-vits14-saliency.safetensors"


def run(*, rounds: int, threads: int) -> Report:
    """Attention at two depths and occlusion on S/16, and on the DINOv2 weights where they lie beside the project."""
    here = "benchmarks.explain"
    cases = []
    for depth in (12, 24):
        task = f"attention, {depth} layers"
        cases.append(Case(task, "vitreous", f"{here}:ours", (depth,)))
        cases.append(Case(task, "transformers", f"{here}:transformers", (depth,)))
    if DINOV2.exists():
        cases.append(Case("attention, DINOv2", "vitreous", f"{here}:ours", (str(DINOV2),)))
    cases += [Case("occlusion", who, f"{here}:occlusion", (who,)) for who in ("vitreous", "captum", "captum of 16")]
    return Report(
        name="explain",
        settings={"rounds": rounds, "threads": threads, "batch": BATCH},
        samples=run_cases(cases, rounds=rounds, threads=threads),
        columns={
            "plain s": (lambda s: s["plain"]["seconds"], ".3f"),
            "with s": (lambda s: s["with"]["seconds"], ".3f"),
            "ratio": (lambda s: s["with"]["seconds"] / s["plain"]["seconds"], ".2f"),
            "extra MB": (lambda s: (s["with"]["peak_bytes"] - s["plain"]["peak_bytes"]) / 2**20, ".0f"),
        },
        note=f"attention: a pass over {BATCH} pictures of 224x224, S/16, and the same pass with the attention of "
        "all layers: ours the rows that the head's token reads by, transformers' all rows (eager). "
        "occlusion: one picture, 196 windows of one patch, beside one pass over 16 pictures; captum with one window "
        "at a time (its default), and with 16. extra: peak memory over that of the plain pass.",
    )


def ours(model: int | str) -> Sample:
    """Our pass, and our pass that keeps what the CLS token reads."""
    import torch

    from vitreous.classifier import load
    from vitreous.config import ViTConfig
    from vitreous.explain import readout_attention
    from vitreous.model import VisionTransformer

    if isinstance(model, str):
        vit = load(model, image_size=224).model
    else:
        vit = VisionTransformer(ViTConfig.from_name("S/16", num_layers=model)).eval()
    images = torch.randn(BATCH, 3, 224, 224)
    with torch.inference_mode():
        return _in_turn(lambda: vit(images), lambda: readout_attention(vit, images))


def transformers(depth: int) -> Sample:
    """The pass with fused attention, and the eager one that returns all matrices."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    values: dict[str, Any] = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    config = ViTConfig.from_dict(values | {"num_hidden_layers": depth, "num_labels": 1000})
    models = {}
    for attention in ("sdpa", "eager"):
        config._attn_implementation = attention
        models[attention] = ViTForImageClassification(config).eval()
    images = torch.randn(BATCH, 3, 224, 224)
    with torch.inference_mode():
        return _in_turn(lambda: models["sdpa"](images), lambda: models["eager"](images, output_attentions=True))


def occlusion(who: str) -> Sample:
    """One picture without each of its patches in turn."""
    import torch

    from vitreous.config import ViTConfig
    from vitreous.explain import occlusion as without
    from vitreous.model import VisionTransformer

    vit = VisionTransformer(ViTConfig.from_name("S/16", num_classes=10)).eval()
    torch.nn.init.normal_(vit.head.weight)  # type: ignore[union-attr]
    images = torch.randn(16, 3, 224, 224)

    def all_windows() -> Any:
        if who == "vitreous":
            return without(vit, images[:1], target=1, remove="mean", score="logit")
        from captum.attr import Occlusion

        return Occlusion(vit).attribute(
            images[:1],
            sliding_window_shapes=(3, 16, 16),
            strides=(3, 16, 16),
            target=1,
            perturbations_per_eval=16 if who == "captum of 16" else 1,
        )

    with torch.no_grad():
        return _in_turn(lambda: vit(images), all_windows, times=1)


def _in_turn(plain: Callable[[], Any], extra: Callable[[], Any], times: int = 7) -> Sample:
    """Medians of both, run by turns; peak memory is taken before the costlier one first runs, and after."""
    plain()
    before = memory_peak()
    extra()
    after = memory_peak()
    seconds: dict[str, list[float]] = {"plain": [], "with": []}
    for _ in range(times):
        for name, function in (("plain", plain), ("with", extra)):
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    peaks = {"plain": before, "with": after}
    return {name: {"seconds": statistics.median(s), "peak_bytes": peaks[name]} for name, s in seconds.items()}
