"""Helpers that an objective imports to make its peak smaller. They work in a pool, and alone.

Importing this package is cheap and needs no torch; each helper imports it when it is used.
"""

from vrampool.training.accumulation import EffectiveBatch as EffectiveBatch
from vrampool.training.accumulation import GradientAccumulator as GradientAccumulator
from vrampool.training.accumulation import effective_batch as effective_batch
from vrampool.training.cleaning import CleanedUp as CleanedUp
from vrampool.training.cleaning import clean_up as clean_up
from vrampool.training.cleaning import release as release
from vrampool.training.defaults import AppliedSettings as AppliedSettings
from vrampool.training.defaults import apply_settings as apply_settings
from vrampool.training.defaults import threads_for as threads_for
from vrampool.training.fitting import Fitted as Fitted
from vrampool.training.fitting import find_batch_size as find_batch_size
from vrampool.training.fitting import is_out_of_memory as is_out_of_memory
from vrampool.training.offloading import lease_memory as lease_memory
from vrampool.training.offloading import load_offloaded as load_offloaded
from vrampool.training.precision import MixedPrecision as MixedPrecision
from vrampool.training.precision import mixed_precision as mixed_precision
from vrampool.training.shapes import ShapeWatch as ShapeWatch
