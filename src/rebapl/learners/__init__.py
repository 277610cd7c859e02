"""Prompt learners: one file per published method, one small interface; nothing about sampling."""

from rebapl.learners import app, bayesian, cocoop, coop, ivlp, maple, mmrl, mmrl_plus, proda, promptsrc, vpt, zero_shot
from rebapl.learners.base import Learner, Output
from rebapl.learners.recipes import Recipe
from rebapl.learners.registry import METHODS, Method, build_learner, published, register, resolve_method

__all__ = [
    "METHODS",
    "Learner",
    "Method",
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
    "resolve_method",
    "vpt",
    "zero_shot",
]
