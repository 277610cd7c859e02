"""Learners, which are prompts or heads: one file per published method, with one small interface, without sampling."""

from rebapl.learners.base import Learner, Output, Recipe, check_features, takes_features
from rebapl.learners.registry import METHODS, Method, build_learner, published, register

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
    "takes_features",
]
