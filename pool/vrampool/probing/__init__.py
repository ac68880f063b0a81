"""The probe: a few short trials at the corners of the search space, before a study is paid for."""

from vrampool.probing.findings import Findings as Findings
from vrampool.probing.probe import probe as probe
from vrampool.probing.probe import probe_first as probe_first
