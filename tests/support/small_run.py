"""The configuration of a run of two samples that trains in a second or two."""

from rebapl.runs.config import RunConfig

CONFIG = RunConfig(
    data="digits",
    method="maple",
    inference="ensemble",
    backbone="mini",
    shots=2,
    epochs=1,
    test_images=30,
    inference_settings={"cycles": 2},
)
