"""The families that are known, by name; a new one is one module and one line here."""

from vitreous.weights.family import Family
from vitreous.weights.google import Google
from vitreous.weights.huggingface import HuggingFace
from vitreous.weights.mmpretrain import MMPretrain
from vitreous.weights.native import Native
from vitreous.weights.timm import Timm
from vitreous.weights.torchvision import Torchvision

FAMILIES: dict[str, Family] = {
    family.name: family for family in (Google(), Timm(), HuggingFace(), Torchvision(), MMPretrain(), Native())
}
