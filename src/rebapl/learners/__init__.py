"""Prompt learners: one file per published method, one small interface; nothing about sampling."""

from rebapl.learners import coop, zero_shot
from rebapl.learners.base import Learner, Output, Recipe
from rebapl.learners.registry import METHODS, build_learner, register

__all__ = ["METHODS", "Learner", "Output", "Recipe", "build_learner", "coop", "register", "zero_shot"]
