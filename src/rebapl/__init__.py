"""rebapl: sample the posterior of a vision–language model's prompts instead of optimising them.

    posterior = rebapl.fit("digits", "mini", "maple", "rebapl")     names, or objects in their place
    posterior.predict(images).probabilities

Train and use:

* `fit` learns prompts and gives a `Posterior`; `evaluate` scores it on a task.
* `load_task` and `load_backbone` give what `fit` takes, by name.
* `Posterior` predicts; `save_posterior` and `load_posterior` keep it in a folder.

Say how:

* `preset` gives an `Inference`, all settings of how a posterior is sampled, for a method's `Recipe`.
* `Chain` is the loop that runs it on any learner.
* `SGHMC`, `SGLD`, `CyclicalSchedule` and `Repulsion` are its pieces, for a training loop of your own.

Add something of your own; docs/plug-and-play.md shows each:

* `Learner` is the base of all methods, `Settings` that of their settings; `register` names a method.
* `register_distance`, `register_preset` and `register_dataset` name a distance, a preset and a data set.
* `register_tracker` names a tracker, which hears of losses and scores; docs/sharing.md shows one.

The names are imported when they are first used, so that `import rebapl` is quick.
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
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

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
    if name not in _WHERE:
        raise AttributeError(f"module 'rebapl' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
