"""rebapl: sample the posterior of a vision–language model's prompts instead of optimising them.

    posterior = rebapl.fit("digits", "mini", "maple", "rebapl")     each argument is a name or an object
    posterior.predict(images).probabilities

Train and use:

* `fit` learns prompts and returns a `Posterior`; `evaluate` scores a posterior on a task.
* `load_task` and `load_backbone` load a task and a backbone by name, so that `fit` can take them as objects.
* `Posterior` predicts; `save_posterior` writes it to a folder, and `load_posterior` reads it from there.

Choose how a posterior is sampled:

* `preset` builds an `Inference`, which holds all settings of the sampling, for a method's `Recipe`.
* `Chain` is the loop that runs an `Inference` on any learner.
* `SGHMC`, `SGLD`, `CyclicalSchedule` and `Repulsion` are the parts of this loop, for a training loop of your own.

Add something of your own; docs/plug-and-play.md shows an example of each:

* `Learner` is the base class of all methods, `Settings` that of their settings; `register` gives a method its name.
* `register_distance`, `register_preset` and `register_dataset` do the same for a distance, a preset and a data set.
* `register_tracker` registers a tracker, which receives losses and scores; docs/sharing.md shows one.

Each name is imported on first use, so that `import rebapl` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "rebapl.backbones": ["load_backbone"],
    "rebapl.data.catalogue": ["register_dataset"],
    "rebapl.data.task": ["load_task"],
    "rebapl.evaluation": ["evaluate"],
    "rebapl.learners": ["Learner", "Recipe", "register"],
    "rebapl.posterior": ["Posterior", "load_posterior", "save_posterior"],
    "rebapl.repulsion": ["Repulsion", "register_distance"],
    "rebapl.sampling": ["SGHMC", "SGLD", "Chain", "CyclicalSchedule", "Inference", "preset", "register_preset"],
    "rebapl.settings": ["Settings"],
    "rebapl.training.fit": ["fit"],
    "rebapl.training.log": ["register_tracker"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "SGHMC",
    "SGLD",
    "Chain",
    "CyclicalSchedule",
    "Inference",
    "Learner",
    "Posterior",
    "Recipe",
    "Repulsion",
    "Settings",
    "__version__",
    "evaluate",
    "fit",
    "load_backbone",
    "load_posterior",
    "load_task",
    "preset",
    "register",
    "register_dataset",
    "register_distance",
    "register_preset",
    "register_tracker",
    "save_posterior",
]

if TYPE_CHECKING:
    from rebapl.backbones import load_backbone
    from rebapl.data.catalogue import register_dataset
    from rebapl.data.task import load_task
    from rebapl.evaluation import evaluate
    from rebapl.learners import Learner, Recipe, register
    from rebapl.posterior import Posterior, load_posterior, save_posterior
    from rebapl.repulsion import Repulsion, register_distance
    from rebapl.sampling import SGHMC, SGLD, Chain, CyclicalSchedule, Inference, preset, register_preset
    from rebapl.settings import Settings
    from rebapl.training.fit import fit
    from rebapl.training.log import register_tracker


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rebapl' has no attribute '{name}'")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
