"""rebapl: sample the posterior of a vision–language model's prompts instead of optimising them.

The names below are imported when they are first used, so that `import rebapl` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "load_backbone": "rebapl.backbones",
    "load_task": "rebapl.data.task",
    "fit": "rebapl.training.fit",
    "evaluate": "rebapl.evaluation.tasks",
    "Posterior": "rebapl.posterior",
    "load_posterior": "rebapl.posterior",
    "save_posterior": "rebapl.posterior",
    "SGHMC": "rebapl.sampling",
    "SGLD": "rebapl.sampling",
    "CyclicalSchedule": "rebapl.sampling",
    "Repulsion": "rebapl.repulsion",
}

__all__ = [
    "SGHMC",
    "SGLD",
    "CyclicalSchedule",
    "Posterior",
    "Repulsion",
    "__version__",
    "evaluate",
    "fit",
    "load_backbone",
    "load_posterior",
    "load_task",
    "save_posterior",
]

if TYPE_CHECKING:
    from rebapl.backbones import load_backbone
    from rebapl.data.task import load_task
    from rebapl.evaluation.tasks import evaluate
    from rebapl.posterior import Posterior, load_posterior, save_posterior
    from rebapl.repulsion import Repulsion
    from rebapl.sampling import SGHMC, SGLD, CyclicalSchedule
    from rebapl.training.fit import fit


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'rebapl' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)
