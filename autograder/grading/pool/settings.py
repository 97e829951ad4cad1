"""How submissions are graded, as set in nbgrader_config.py."""

from __future__ import annotations

from traitlets import Bool, Dict, Integer
from traitlets.config import LoggingConfigurable


class GradingSettings(LoggingConfigurable):
    """``c.RunAndDecide``: of nbgrader's step with that name, which inherits them, and of the
    commands that grade."""

    limits = Dict(help="Changes to autograder.sandbox.Limits: {'cell_s': 120}").tag(config=True)
    seed = Integer(
        None,
        allow_none=True,
        help="Seed of the inputs that answers are tried on; by default drawn once per course",
    ).tag(config=True)
    unsandboxed = Bool(
        False, help="Run student code with your own permissions, on a machine without a sandbox"
    ).tag(config=True)

    @classmethod
    def section_names(cls) -> list[str]:
        return [*super().section_names(), "RunAndDecide"]
