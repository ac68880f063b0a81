"""Why a worker cannot run a submission: another Python, other source code, or a bundle where none is allowed."""

from __future__ import annotations

import sys

from vrampool.messages import WIRE_VERSION, SubmissionSpec
from vrampool.objectives import source_hash
from vrampool.settings import Settings


def why_not(spec: SubmissionSpec, settings: Settings) -> str | None:
    """Return the reason in words, or None when this worker can run it."""
    if spec.wire > WIRE_VERSION:
        return f"its messages are of version {spec.wire}, this worker reads {WIRE_VERSION}: upgrade the worker"
    objective = spec.objective
    if objective.kind == "bundle":
        if settings.objectives == "import":
            return "this worker takes no bundles (--objectives import); submit by import path"
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if objective.python != here:
            return f"its bundle was made by Python {objective.python}, this worker has {here}"
        return None
    found = source_hash(objective.target, objective.sys_path)
    if found is None:
        # Not refused: the child's own error names what is missing, and where, in the trial.
        return None
    if objective.source_sha256 is not None and found != objective.source_sha256:
        return f"{objective.target} has other source code here than where it was submitted: bring both to one version"
    return None
