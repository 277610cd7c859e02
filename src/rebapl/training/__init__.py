"""Training: from a task, a backbone, a method and an inference to a posterior."""

from rebapl.training.checkpoint import Progress
from rebapl.training.fit import Training, fit
from rebapl.training.resolution import ResolvedTraining, default_backbone, resolve_training

__all__ = ["Progress", "ResolvedTraining", "Training", "default_backbone", "fit", "resolve_training"]
