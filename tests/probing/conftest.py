"""A pool of one's own for each test that asks for one."""

from acceptance.conftest import make_pool as make_pool
from acceptance.conftest import own_settings as own_settings
from acceptance.conftest import pytest_runtest_makereport as pytest_runtest_makereport
