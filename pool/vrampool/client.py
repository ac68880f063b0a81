"""What a notebook or script holds of a pool that is there: its storage, its queue, its books."""

from __future__ import annotations

import time
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.study import StudyDirection

from vrampool.errors import RequestError, StudyError
from vrampool.handle import Handle
from vrampool.messages import SubmissionSpec
from vrampool.queueing import Events, JobQueue, Registry, connect
from vrampool.settings import Settings
from vrampool.signing import load_secret, open_spec, sign_spec
from vrampool.storage import Catalog, SubmissionRow, open_storage
from vrampool.units import format_bytes


class Client:
    """Connections to one pool.

    Args:
        settings: `redis` and `storage` are filled in.

    Raises:
        UnreachableError: Redis or the database does not answer.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.redis is not None and settings.storage is not None
        self.settings = settings
        self.signer = load_secret(settings, create=False)
        self.connection = connect(settings.redis, role="client")
        self.storage: Any = open_storage(settings.storage, create_schema=True)
        self.catalog = Catalog(self.storage)
        self.registry = Registry(self.connection, settings.pool)
        self.events = Events(self.connection, settings.pool)
        self.queue = JobQueue(self.connection, settings.pool, self.signer)

    def close(self) -> None:
        self.connection.close()
        self.storage.close()

    def prepare_study(self, study_name: str, directions: list[str] | None) -> None:
        """Make the study, or check that the one that is there has the same directions.

        Raises:
            StudyError: it has others.
        """
        kinds = [StudyDirection[item.upper()] for item in directions or ["minimize"]]
        try:
            study_id = self.storage.create_new_study(kinds, study_name)
        except DuplicatedStudyError:
            study_id = self.storage.get_study_id_from_name(study_name)
        found = [item.name.lower() for item in self.storage.get_study_directions(study_id)]
        if directions is not None and found != directions:
            raise StudyError(
                f"study {study_name!r} exists with direction {', '.join(found)}, not {', '.join(directions)}; "
                "use its direction, or another study_name"
            )

    def check_fits(self, spec: SubmissionSpec, known_bytes: int) -> None:
        """See that what is asked for fits on some device.

        Args:
            spec: The submission.
            known_bytes: The largest budget that is known before workers tell theirs.

        Raises:
            RequestError: it fits on none.
        """
        largest = max(self.registry.largest_budget(time.time()) or 0, known_bytes)
        if isinstance(spec.vram, int) and largest and spec.vram > largest:
            raise RequestError(
                f"vram={format_bytes(spec.vram)} is more than the largest device of the pool may hold "
                f"({format_bytes(largest)}); ask for less, or add a larger device"
            )

    def enter(self, spec: SubmissionSpec, bundle: bytes | None, sampler: Any, pruner: Any) -> Handle:
        """Enter a submission into the books, and return its handle."""
        if bundle is not None:
            digest = spec.objective.bundle_sha256
            assert digest is not None
            self.catalog.put_bundle(digest, bundle, self.signer.sign("bundle", bundle))
        self.catalog.add_submission(
            spec.submission_id,
            spec.study_name,
            sign_spec(self.signer, spec),
            bundle_sha256=spec.objective.bundle_sha256,
        )
        self.events.publish({"submission": spec.submission_id, "state": "open"})
        row = self.catalog.submission(spec.submission_id)
        assert row is not None
        return self._handle(row, spec, sampler, pruner)

    def handle_of(self, row: SubmissionRow) -> Handle:
        """Return the handle of a submission that is in the books.

        Raises:
            MessageError: it is not signed by this pool, or cannot be read.
        """
        return self._handle(row, open_spec(self.signer, row.id, row.spec_text))

    def _handle(self, row: SubmissionRow, spec: SubmissionSpec, sampler: Any = None, pruner: Any = None) -> Handle:
        study = optuna.load_study(
            study_name=spec.study_name,
            storage=self.storage,
            sampler=sampler if isinstance(sampler, optuna.samplers.BaseSampler) else None,
            pruner=pruner if isinstance(pruner, optuna.pruners.BasePruner) else None,
        )
        return Handle(self.storage, self.connection, self.settings.pool, row, spec, study)
