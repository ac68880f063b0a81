"""`vrampool status --check`: does what Redis holds agree with the storage? `--fix` mends what does not."""

from __future__ import annotations

import sys
import time
from typing import Any

from vrampool.settings import Settings


def check(settings: Settings, *, fix: bool, as_json: bool) -> int:
    """Look twice, say what differs, and mend it when asked to.

    Returns:
        The exit code: 0 when nothing differs, or all was mended; 1 when something does.
    """
    from vrampool.cli.output import to_json

    mender = _mender(settings)
    findings = mender.look()
    if findings:
        print(
            f"{len(findings)} to look at: a running pool may be in the middle of a step, "
            f"so they are looked at again in {mender.pause_s:.0f} s",
            file=sys.stderr,
        )
        time.sleep(mender.pause_s)
        findings = mender.confirm(findings)
    left = findings
    if fix and findings:
        mender.fix(findings)
        left = mender.confirm(findings)
    remaining = {finding.identity for finding in left}
    if as_json:
        told = [
            {
                "kind": str(finding.kind),
                "subject": finding.subject,
                "text": finding.text,
                "remedy": finding.remedy,
                "mended": fix and finding.identity not in remaining,
            }
            for finding in findings
        ]
        print(to_json({"findings": told, "agree": not left}))
    else:
        for finding in findings:
            verb = "would" if not fix else "did not help:" if finding.identity in remaining else "done:"
            print(f"{finding.text}; {verb} {finding.remedy}")
        print(_summary(len(findings), len(left), fix))
    return 1 if left else 0


def _summary(found: int, left: int, fix: bool) -> str:
    if not found:
        return "storage and Redis agree"
    if not fix:
        return f"{found} found; `vrampool status --check --fix` mends them"
    return f"{found - left} of {found} mended" if left else f"{found} mended"


def _mender(settings: Settings) -> Any:
    from vrampool.consistency import Mender
    from vrampool.local.starting import attach
    from vrampool.queueing import connect
    from vrampool.signing import load_secret
    from vrampool.storage import open_storage

    if settings.redis is None or settings.storage is None:
        local = attach(settings)
        if local is None:
            from vrampool.errors import InputError

            raise InputError(f"no pool runs in {settings.state_dir}: name one with --redis and --storage")
        settings = local.settings
    assert settings.redis is not None and settings.storage is not None
    signer = load_secret(settings, create=False)
    storage = open_storage(settings.storage, create_schema=False)
    return Mender(settings, connect(settings.redis, role="check"), storage, signer)
