"""Leases and policies of one device: pure, with a reason in words for every decision."""

from vrampool_worker.ledger.book import Ledger as Ledger
from vrampool_worker.ledger.concurrency import Concurrency as Concurrency
from vrampool_worker.ledger.earmarks import Earmark as Earmark
from vrampool_worker.ledger.leases import Decision as Decision
from vrampool_worker.ledger.leases import LeaseState as LeaseState
from vrampool_worker.ledger.leases import LedgerState as LedgerState
from vrampool_worker.ledger.leases import Offer as Offer
from vrampool_worker.ledger.leases import Release as Release
