"""Devices with a memory budget: GPUs through NVML, the CPU with host memory."""

from vrampool_worker.devices.base import Device as Device
from vrampool_worker.devices.base import DeviceReading as DeviceReading
from vrampool_worker.devices.lock import device_lock as device_lock
from vrampool_worker.devices.sampler import Blind as Blind
from vrampool_worker.devices.sampler import Sampler as Sampler
from vrampool_worker.devices.selection import find_devices as find_devices
from vrampool_worker.devices.trees import TreeMemory as TreeMemory
