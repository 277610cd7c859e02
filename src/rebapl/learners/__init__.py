"""Learners, prompts and heads: one file per published method, one small interface; nothing about sampling."""

from rebapl.learners.base import Learner, Output, Recipe, check_features, takes_features
from rebapl.learners.registry import METHODS, Method, build_learner, published, register, resolve_method

__all__ = [
    "METHODS",
    "Learner",
    "Method",
    "Output",
    "Recipe",
    "build_learner",
    "check_features",
    "published",
    "register",
    "resolve_method",
    "takes_features",
]
