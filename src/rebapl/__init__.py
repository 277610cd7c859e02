"""rebapl: sample the posterior of a vision–language model's prompts instead of optimising them."""

__version__ = "0.1.0"
