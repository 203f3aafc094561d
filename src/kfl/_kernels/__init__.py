"""Hand-written passes behind one door: `trainer(network, loss, …) -> Trainer | None`, and likewise features and logits.

None means that the general path of `kfl.engine` does the work. A network is what `kfl.models.read_network` reads from
a module, a loss what `Objective.closed_form` declares. `cpu` has full-batch steps of one device in one thread
(`DeviceKernels`), `cuda` the steps of a whole cohort at once (`CohortKernels`).
"""

from kfl._kernels.closed_form import (
    MIXING,
    PERSONAL,
    ClosedForm,
    Descent,
    FeatureTargets,
    LabelLogits,
    mixture_names,
)

__all__ = ["MIXING", "PERSONAL", "ClosedForm", "Descent", "FeatureTargets", "LabelLogits", "mixture_names"]
