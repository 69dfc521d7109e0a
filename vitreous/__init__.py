"""vitreous: the classic Vision Transformer that you can trust and see through."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitreous import explain
    from vitreous.classifier import Classifier, Prediction, load
    from vitreous.config import VARIANTS, ResNetConfig, ViTConfig
    from vitreous.cost import Cost, cost
    from vitreous.engine.compile import Compiled, compile
    from vitreous.engine.export import Export, export
    from vitreous.engine.exported import Exported, load_exported
    from vitreous.errors import ConfigError, DataError, ImageError, VitreousError, WeightsError
    from vitreous.evaluation.evaluate import Evaluation, evaluate
    from vitreous.evaluation.probe import Probe, probe
    from vitreous.images import read_image
    from vitreous.model import VisionTransformer
    from vitreous.preprocess import Preprocess
    from vitreous.trace import Trace, trace
    from vitreous.training import Recipe, finetune, pretrain
    from vitreous.weights.convert import convert

# Each name and where it lives. Imported when first used, so that `import vitreous` is quick.
_HOME = {
    "Classifier": "classifier",
    "Prediction": "classifier",
    "load": "classifier",
    "VARIANTS": "config",
    "ResNetConfig": "config",
    "ViTConfig": "config",
    "Compiled": "engine.compile",
    "compile": "engine.compile",
    "Export": "engine.export",
    "export": "engine.export",
    "Exported": "engine.exported",
    "load_exported": "engine.exported",
    "ConfigError": "errors",
    "DataError": "errors",
    "ImageError": "errors",
    "VitreousError": "errors",
    "WeightsError": "errors",
    "Cost": "cost",
    "cost": "cost",
    "Trace": "trace",
    "trace": "trace",
    "Evaluation": "evaluation",
    "evaluate": "evaluation",
    "Probe": "evaluation",
    "probe": "evaluation",
    "read_image": "images",
    "VisionTransformer": "model",
    "Preprocess": "preprocess",
    "Recipe": "training",
    "finetune": "training",
    "pretrain": "training",
    "convert": "weights.convert",
}

_PACKAGES = ("explain",)

__all__ = [*_HOME, *_PACKAGES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"vitreous.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    value = getattr(import_module(f"vitreous.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Keeps `vitreous.cost` the function: importing the module of that name would put itself in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
