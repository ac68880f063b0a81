"""Memory as numbers: requests before a trial, verdicts after an out-of-memory error. Pure."""

from vrampool.memory.requests import PastPeak as PastPeak
from vrampool.memory.requests import Request as Request
from vrampool.memory.requests import check_fits as check_fits
from vrampool.memory.requests import lease_after_first_report as lease_after_first_report
from vrampool.memory.requests import next_request as next_request
from vrampool.memory.requests import parse_vram as parse_vram
from vrampool.memory.verdicts import Judgement as Judgement
from vrampool.memory.verdicts import MemoryFault as MemoryFault
from vrampool.memory.verdicts import MemoryKind as MemoryKind
from vrampool.memory.verdicts import VerdictNumbers as VerdictNumbers
from vrampool.memory.verdicts import classify as classify
from vrampool.memory.verdicts import classify_log as classify_log
from vrampool.memory.verdicts import judge as judge
