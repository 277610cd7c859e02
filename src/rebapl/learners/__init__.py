"""Learners, prompts and heads: one file per published method, one small interface; nothing about sampling."""

from rebapl.learners.base import Learner, Output
from rebapl.learners.recipes import Recipe
from rebapl.learners.registry import METHODS, Method, build_learner, published, register, resolve_method

__all__ = [
    "METHODS",
    "Learner",
    "Method",
    "Output",
    "Recipe",
    "build_learner",
    "published",
    "register",
    "resolve_method",
]
