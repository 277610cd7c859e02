"""Frozen dual encoders: load one by name or path; walk its layers with prompts put in."""

from rebapl.backbones.encoder import DualEncoder
from rebapl.backbones.loading import DEFAULT_BACKBONE, default_backbone, load_backbone
from rebapl.backbones.text import Text, TextTokenizer, clean_class_names
from rebapl.backbones.tower import Edit, Insert, Replace, States, Tower

__all__ = [
    "DEFAULT_BACKBONE",
    "DualEncoder",
    "Edit",
    "Insert",
    "Replace",
    "States",
    "Text",
    "TextTokenizer",
    "Tower",
    "clean_class_names",
    "default_backbone",
    "load_backbone",
]
