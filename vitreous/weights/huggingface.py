"""Hugging Face's ViT folders: `config.json`, `preprocessor_config.json`, and the tensors in one or several files.

`ViTForImageClassification` and `ViTModel` (whose pooler is the paper's pre-logits layer), the
encoders of `ViTMAE...` and `ViTMSN...`, and `Dinov2Model`, whose LayerScale is folded into the
matrices. Query, key and value are apart. On the disk the names are the old ones, also when
transformers 5 writes them; what its `state_dict()` gives has new ones, and both are read. Facts
from transformers 5.24 `models/vit`, `models/dinov2` and `conversion_mapping.py`.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.base.errors import ConfigError, WeightsError
from vitreous.base.files import write_text
from vitreous.config import Size, ViTConfig, as_size
from vitreous.pictures.preprocess import Preprocess
from vitreous.weights import backbones, processors
from vitreous.weights.assemble import assemble
from vitreous.weights.checkpoint import Checkpoint, Hints, default_preprocess, split_qkv
from vitreous.weights.family import FILES, WEIGHTS, Beside, Family, antialiased, never_kept, reads_class_token
from vitreous.weights.names import Names
from vitreous.weights.safefile import write_safetensors
from vitreous.weights.stored import Stored

logger = logging.getLogger("vitreous")

_OLD, _NEW, _DINO = "encoder.layer.#", "layers.#", "encoder.layer.#"
NAMES = Names(
    [
        ("cls_token", "embeddings.cls_token"),
        ("position_embedding", "embeddings.position_embeddings"),
        ("patch_embedding.projection.*", "embeddings.patch_embeddings.projection.*"),
        ("blocks.#.norm1.*", f"{_OLD}.layernorm_before.*"),
        ("blocks.#.norm1.*", f"{_NEW}.layernorm_before.*"),
        ("blocks.#.norm1.*", f"{_DINO}.norm1.*"),
        *(
            (f"blocks.#.attention.{part}.*", f"{block}.{theirs}.*")
            for part in ("query", "key", "value")
            for block, theirs in (
                (_OLD, f"attention.attention.{part}"),
                (_NEW, f"attention.{part[0]}_proj"),
                (_DINO, f"attention.{part[0]}_proj"),
            )
        ),
        ("blocks.#.attention.out.*", f"{_OLD}.attention.output.dense.*"),
        ("blocks.#.attention.out.*", f"{_NEW}.attention.o_proj.*"),
        ("blocks.#.attention.out.*", f"{_DINO}.attention.o_proj.*"),
        ("blocks.#.scale1", f"{_DINO}.layer_scale1.lambda1"),
        ("blocks.#.norm2.*", f"{_OLD}.layernorm_after.*"),
        ("blocks.#.norm2.*", f"{_NEW}.layernorm_after.*"),
        ("blocks.#.norm2.*", f"{_DINO}.norm2.*"),
        ("blocks.#.mlp.fc1.*", f"{_OLD}.intermediate.dense.*"),
        ("blocks.#.mlp.fc1.*", f"{_NEW}.mlp.fc1.*"),
        ("blocks.#.mlp.fc1.*", f"{_DINO}.mlp.fc1.*"),
        ("blocks.#.mlp.fc2.*", f"{_OLD}.output.dense.*"),
        ("blocks.#.mlp.fc2.*", f"{_NEW}.mlp.fc2.*"),
        ("blocks.#.mlp.fc2.*", f"{_DINO}.mlp.fc2.*"),
        ("blocks.#.scale2", f"{_DINO}.layer_scale2.lambda1"),
        ("norm.*", "layernorm.*"),
        ("pre_logits.*", "pooler.dense.*"),
        ("head.*", "classifier.*"),
    ]
)
BASES = ("vit.", "deit.", "dinov2.")  # before the names, where a head stands beside the model
# `hidden_act` -> ours. The last three are one formula written in three ways.
GELUS = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}
KINDS = {"vit": 1e-12, "vit_mae": 1e-12, "vit_msn": 1e-6, "deit": 1e-12, "dinov2": 1e-6}  # and their default eps
DECODER = (r"decoder\.", "decoder, used in pre-training only")
POOLER = (r"pooler\.", "pooler, which the classifier does not use")
WIDE_HEAD = (r"classifier\.", "head over class token and mean of patches together, which is not in this model")


class HuggingFace(Family):
    """Hugging Face's `ViT...`, `ViTMAE...`, `ViTMSN...` and `Dinov2...`."""

    name, title = "huggingface", "Hugging Face"
    anchor = r"(vit\.|deit\.|dinov2\.)?embeddings\.patch_embeddings\.projection\.weight"
    described = ("model_type", "hidden_size")
    position_resize, preset = "huggingface", "huggingface"
    kept_rates = ("dropout_rate", "attention_dropout_rate")

    def read(self, stored: Stored, hints: Hints, beside: Beside) -> Checkpoint:
        config, processor = beside.config, beside.processor
        base = next((base for base in BASES if any(name.startswith(base) for name in stored.tensors)), "")
        stored = stored.renamed({name.removeprefix(base): name for name in stored.tensors})
        names = stored.tensors
        dino = any(".layer_scale1." in name for name in names)
        config = {"model_type": "dinov2" if dino else "vit"} if config is None else config
        kind = str(config.get("model_type"))
        if kind not in KINDS:
            raise WeightsError(f"{stored.source} is a {kind!r} model, not a classic ViT: {', '.join(KINDS)} are read")
        left_out = _left_out(stored, kind, hints)
        made = assemble(stored, NAMES, hints, _settings(config, kind, stored.source), left_out, _image_size(config))
        provenance = {"family": self.name, "model_type": kind, **made.provenance}
        preprocess, provenance["preprocess"] = _preprocess(processor, made.config, dino, stored.source)
        classifies = any(str(name).endswith("ForImageClassification") for name in config.get("architectures") or ())
        pretraining = any(name.startswith("decoder.") for name in names)
        head_expected = classifies or (not config.get("architectures") and base == "vit." and not pretraining)
        labels = _labels(config, made.config.num_classes)
        return Checkpoint(made.config, made.tensors, preprocess, labels, provenance, head_expected)

    def check_path(self, path: Path) -> None:
        if path.suffix in (*FILES, ".npz"):
            raise WeightsError(f"{path}: Hugging Face's format is a folder with several files, so give a folder's name")

    def refusals(self, config: ViTConfig, path: Path) -> Iterator[str]:
        yield from reads_class_token(config)
        if config.representation_size is not None and config.num_classes:
            yield (
                'its ViTForImageClassification has no pre-logits layer: write to="google" or "torchvision", '
                "or load with num_classes=0 for a ViTModel, whose pooler it is"
            )

    def losses(self, checkpoint: Checkpoint, path: Path) -> Iterator[str]:
        size, preprocess = checkpoint.config.image_size, checkpoint.preprocess
        if not preprocess.antialias:
            yield antialiased(self)
        elif preprocess.resize == "short" and size[0] != size[1]:
            yield "its processor cuts pictures that are not square differently: prepare them with vitreous"
        yield from never_kept(self, checkpoint.config)

    def write(self, checkpoint: Checkpoint, path: Path) -> None:
        config = checkpoint.config
        write_safetensors(path / WEIGHTS, to_huggingface(config, checkpoint.tensors), {"format": "pt"})
        write_description(path, config, checkpoint.preprocess, checkpoint.labels)


def _left_out(stored: Stored, kind: str, hints: Hints) -> list[tuple[str, str]]:
    """Tensors that the model does without, and why."""
    left_out = [DECODER, *backbones.PRETRAINING]
    if "classifier.weight" in stored.tensors:
        left_out.append(POOLER)
        if kind == "dinov2":
            if hints.num_classes is None:
                raise WeightsError(
                    f"{stored.source} has a {WIDE_HEAD[1]}: give num_classes=0 for the backbone alone, "
                    "or the number of classes for a new head"
                )
            left_out.append(WIDE_HEAD)
    return left_out


def _settings(config: Mapping[str, Any], kind: str, source: str) -> dict[str, Any]:
    """What the shapes do not say."""
    act = config.get("hidden_act", "gelu")
    if act not in GELUS:
        raise WeightsError(f"{source} is not the classic ViT: its MLPs use {act}, not GELU")
    if (pooler := config.get("pooler_act", "tanh")) != "tanh":
        raise WeightsError(f"{source} is not the classic ViT: its pooler uses {pooler}, not tanh")
    settings = {
        "gelu": GELUS[act],
        "layer_norm_eps": config.get("layer_norm_eps", KINDS[kind]),
        "position_resize": "huggingface",
        "classifier": "token",
        "dropout_rate": config.get("hidden_dropout_prob", 0.0),
        "attention_dropout_rate": config.get("attention_probs_dropout_prob", 0.0),
    }
    if "num_attention_heads" in config:
        settings["num_heads"] = config["num_attention_heads"]
    return settings


def _image_size(config: Mapping[str, Any]) -> Size | None:
    try:
        return as_size(config.get("image_size"))
    except ConfigError:
        return None


def _preprocess(
    processor: Mapping[str, Any] | None, config: ViTConfig, dino: bool, source: str
) -> tuple[Preprocess, str]:
    if processor is not None:
        try:
            preprocess = processors.read(processor)
        except (ConfigError, TypeError, ValueError, AttributeError) as error:
            logger.warning("%s: its preprocessing cannot be followed (%s): the default is used", source, error)
        else:
            if preprocess.size != config.image_size:
                logger.warning(
                    "%s: its processor makes %dx%d pictures, its positions are for %dx%d: with image_size=(%d, %d) "
                    "it does as Hugging Face does",
                    *(source, *preprocess.size, *config.image_size, *preprocess.size),
                )
            return preprocess.resized(config.image_size), "of preprocessor_config.json"
    if dino:
        return backbones.preprocess(config.image_size), "assumed: DINOv2's"
    return default_preprocess("huggingface", config), "assumed: the default of ViTImageProcessor"


def _labels(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    """`id2label`, unless it holds nothing but LABEL_0, LABEL_1, ..."""
    table = config.get("id2label")
    if not isinstance(table, Mapping) or len(table) != count or not count:
        return None
    labels = [table.get(str(i), table.get(i)) for i in range(count)]
    if not all(isinstance(label, str) for label in labels) or labels == _placeholders(count):
        return None
    return tuple(str(label) for label in labels)


def _placeholders(count: int) -> list[str]:
    return [f"LABEL_{i}" for i in range(count)]


def to_huggingface(config: ViTConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our `state_dict` under Hugging Face's names on the disk; with a head, the model's stand under `vit.`."""
    base = "vit." if config.num_classes else ""
    out: dict[str, Tensor] = {}
    for name, tensor in split_qkv(tensors).items():
        theirs = str(NAMES.theirs(name))
        out[theirs if theirs.startswith("classifier.") else f"{base}{theirs}"] = tensor
    return out


def write_description(folder: Path, config: ViTConfig, preprocess: Preprocess, labels: tuple[str, ...] | None) -> None:
    """Write `config.json` and `preprocessor_config.json`, for `from_pretrained`."""
    content: dict[str, Any] = {
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "model_type": "vit",
        "image_size": _number_or_pair(config.image_size),
        "patch_size": _number_or_pair(config.patch_size),
        "num_channels": config.in_channels,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "layer_norm_eps": config.layer_norm_eps,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.attention_dropout_rate,
        "qkv_bias": True,
    }
    if config.num_classes:
        table = dict(enumerate(labels or _placeholders(config.num_classes)))
        content["id2label"] = {str(i): label for i, label in table.items()}
        content["label2id"] = {label: i for i, label in table.items()}
    if config.representation_size:
        content["pooler_output_size"], content["pooler_act"] = config.representation_size, "tanh"
    write_text(folder / "config.json", json.dumps(content, indent=2, ensure_ascii=False))
    write_text(folder / "preprocessor_config.json", json.dumps(processors.to_dict(preprocess), indent=2))


def _number_or_pair(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
