"""Plans: which layouts of a model on a cluster fit its memory, and how long a step takes.

`plan(model, cluster, batch)` computes all legal layouts, `reasons` says why one is not, and
`calibrate` fits the cluster's constants to measured steps.  `published` has the runs that all of it
is held to.
"""

from shardlab.plan.calibrate import Calibration, Measured, calibrate
from shardlab.plan.layouts import Layout, Layouts, enumerate_layouts, reasons
from shardlab.plan.model import Cluster, Model
from shardlab.plan.plans import Plan, Plans, plan
from shardlab.plan.step import Constants, Step, step

__all__ = [
    "Calibration",
    "Cluster",
    "Constants",
    "Layout",
    "Layouts",
    "Measured",
    "Model",
    "Plan",
    "Plans",
    "Step",
    "calibrate",
    "enumerate_layouts",
    "plan",
    "reasons",
    "step",
]
