"""Prompt learners: one file per published method, one small interface; nothing about sampling."""

from rebapl.learners import app, bayesian, cocoop, coop, ivlp, maple, mmrl, mmrl_plus, proda, promptsrc, vpt, zero_shot
from rebapl.learners.base import Learner, Output, Recipe
from rebapl.learners.registry import METHODS, build_learner, published, register

__all__ = [
    "METHODS",
    "Learner",
    "Output",
    "Recipe",
    "app",
    "bayesian",
    "build_learner",
    "cocoop",
    "coop",
    "ivlp",
    "maple",
    "mmrl",
    "mmrl_plus",
    "proda",
    "promptsrc",
    "published",
    "register",
    "vpt",
    "zero_shot",
]
