from __future__ import annotations

from support.parts import show_logs as pytest_runtest_makereport  # noqa: F401
