"""The miniature suite, smaller still: one task, four shots, one epoch, four test images."""

from dataclasses import replace

from rebapl.reproduce.suites import MINI

TINY = replace(
    MINI,
    data=("digits",),
    data_by_target=dict.fromkeys(MINI.data_by_target, "digits"),
    source="digits",
    cross=("letters",),
    shifted=("shapes-rotated",),
    seeds=(1,),
    shots=4,
    test_images=4,
    epochs={"*": 1},
    strengths=(1e-2, 1e-1),
    references=(4,),
    cycles=(1, 2, 3),
    samples=(1, 2),
    points=(2, 4),
    repeats=2,
    latency_cycles=(1, 3),
    latency_images=4,
)
