"""Frozen dual encoders. They are loaded by name or path, and prompts can be inserted at any of their layers."""

from rebapl.backbones.encoder import Dtype, DualEncoder, computing_type
from rebapl.backbones.loading import DEFAULT_BACKBONE, backbone_stamps, find_backbone, load_backbone
from rebapl.backbones.text import Text, TextTokenizer, clean_class_names
from rebapl.backbones.tower import Edit, Insert, Layer, Replace, States, Tower

__all__ = [
    "DEFAULT_BACKBONE",
    "Dtype",
    "DualEncoder",
    "Edit",
    "Insert",
    "Layer",
    "Replace",
    "States",
    "Text",
    "TextTokenizer",
    "Tower",
    "backbone_stamps",
    "clean_class_names",
    "computing_type",
    "find_backbone",
    "load_backbone",
]
