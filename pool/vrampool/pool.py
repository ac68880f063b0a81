"""The pool as a notebook or script sees it: submit, optimize, attach, look."""

from __future__ import annotations

import contextlib
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vrampool.errors import InputError, MessageError, OutOfScopeError, StudyError, UnreachableError, VrampoolError
from vrampool.local.ahead import CLIENT, import_ahead
from vrampool.local.starting import LocalPool, attach_or_start, filled_ahead
from vrampool.settings import Settings, load_settings

if TYPE_CHECKING:  # Optuna takes longer to import than a pool to start, so that is begun first
    import optuna

    from vrampool.client import Client
    from vrampool.handle import Callback, Handle
    from vrampool.queueing import WaitingJob, WorkerRecord


class Pool:
    """A pool of GPU workers.

    Without `redis` it is the local pool of this user: one that runs is attached to, else one is started on first
    use. Started so it is detached: it outlives this process and ends when it was idle for ten minutes. Used as
    ``with Pool() as pool`` it is owned: it ends with the block.

    Args:
        redis: URL of the pool's Redis; None for the local pool.
        storage: SQLAlchemy URL of the study storage; None: the local pool's SQLite file.
        **settings: Any other field of `Settings`, for a local pool that is started here (`gpu`, `budget`, ...).

    Raises:
        SettingsError: a setting has no valid value.
    """

    def __init__(self, *, redis: str | None = None, storage: str | None = None, **settings: Any) -> None:
        _check_system()
        unknown = sorted(set(settings) - set(Settings.__dataclass_fields__))
        if unknown:
            raise InputError(f"Pool() has no setting {unknown[0]!r}; known: {', '.join(Settings.__dataclass_fields__)}")
        self._settings = load_settings({"redis": redis, "storage": storage, **settings})
        if self._settings.redis is not None and self._settings.storage is None:
            raise InputError("redis= is given but storage= is not: workers of other machines need its URL")
        self._local: LocalPool | None = None
        self._client: Client | None = None
        self._ahead: Client | None = None  #: of a pool that was about to start
        self._owned = False
        self._optimizing: set[str] = set()

    # ---- life ----------------------------------------------------------------------------------------

    def __enter__(self) -> Pool:
        self._owned = True
        try:
            self._open()
        except BaseException:
            self.close()  # a pool that was started and cannot be used is not left behind
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the pool: an owned one is stopped, a detached or remote one goes on."""
        if self._local is not None and self._local.process is not None:
            self._local.stop()
        for client in (self._client, self._ahead):
            if client is not None:
                client.close()
        self._client = self._ahead = None
        self._local = None

    def _prepare(self) -> None:
        """Do what can be done while a local pool starts: it takes as long to import and open what it needs."""
        import_ahead(CLIENT)
        if self._ahead is None and self._settings.redis is None and self._settings.storage is None:
            from vrampool.client import Client

            with contextlib.suppress(VrampoolError):  # it is met again, once there is a pool to end
                self._ahead = Client(filled_ahead(self._settings))

    def _open(self) -> Client:
        if self._client is not None:
            return self._client
        if self._settings.redis is None:
            self._local = attach_or_start(self._settings, owned=self._owned, meanwhile=self._prepare)
            self._settings = self._local.settings
        from vrampool.client import Client

        if self._ahead is not None and self._ahead.settings == self._settings:
            self._client, self._ahead = self._ahead, None
            return self._client
        try:
            self._client = Client(self._settings)
        except UnreachableError:
            self._failure()  # of a pool that ended at once: why it did says more
            raise
        return self._client

    @property
    def settings(self) -> Settings:
        """The settings in force; `redis` and `storage` are filled in once the pool is open."""
        self._open()
        return self._settings

    @property
    def local(self) -> LocalPool | None:
        """The local pool behind this object, or None for a remote one."""
        self._open()
        return self._local

    @property
    def storage(self) -> Any:
        """The pool's Optuna storage, as this process opened it."""
        return self._open().storage

    @property
    def connection(self) -> Any:
        """This process's Redis connection."""
        return self._open().connection

    # ---- submitting ----------------------------------------------------------------------------------

    def submit(
        self,
        objective: Callable[..., Any] | str,
        n_trials: int | None = None,
        *,
        total: int | None = None,
        study_name: str | None = None,
        direction: str | None = None,
        directions: Sequence[str] | None = None,
        vram: str | int | tuple[str | int | None, str | int | None] | Callable[..., int | str] = "auto",
        sampler: Any = None,
        pruner: Any = None,
        timeout: float | None = None,
        trial_timeout_s: float | None = None,
        max_concurrent_trials: int | None = None,
        max_trials_per_device: int | None = None,
        priority: int = 0,
        env: Mapping[str, str] | None = None,
        workdir: str | os.PathLike[str] | None = None,
        points: Sequence[Mapping[str, Any]] = (),
        skip_if_exists: bool = False,
        catch: type[BaseException] | Iterable[type[BaseException]] | None = None,
        callbacks: Iterable[Callback] = (),
        retry_timeouts: bool = False,
        max_infra_retries: int = 2,
        oom: str = "auto",
        seed: int | None = None,
        gpus: int = 1,
        probe: bool = False,
    ) -> Handle:
        """Submit a study and return at once.

        Args:
            objective: A function of one trial, or "FILE.py:name" or "package.module:name".
            n_trials: Root trials to add; None: until `timeout`, a stop, or the sampler's end.
            total: Instead: root trials the study shall have in all; a study that has them gets none.
            study_name: An existing study is gone on with; None makes a new one named after the objective.
            direction, directions: As in `optuna.create_study`; "minimize" if none is given.
            vram: "auto" (measured and learned from the parameters), or what each trial needs, such as "6GiB"; bounds
                for what is learned, such as ("2GiB", "20GiB"), with None for an open end; or a function of the
                planned parameters that returns a size (also as "package.module:function").
            sampler, pruner: Optuna objects or "package.module:Class"; None: Optuna's defaults.
            timeout: Seconds after which no more trials are created; running ones finish.
            trial_timeout_s: Seconds after which one trial is ended and told FAIL.
            max_concurrent_trials: Trials of this submission under way at once, over all devices.
            max_trials_per_device: Trials of this submission at once on each device.
            priority: Trials of a submission with a higher one start first; running ones are left alone.
            env: Variables for the trial's process, set before any of the user's code.
            workdir: Working directory of the trials.
            points: Parameters to try first, as `study.enqueue_trial` takes them.
            skip_if_exists: Leave out points that the study has, also when two submitters race.
            catch: Exceptions that do not end the study; None: all of them. The first five failing alike do.
            callbacks: Called by `wait` in this process, once per root trial, with the study and the trial.
            retry_timeouts: Treat an ended trial as lost by bad luck instead of as the objective's fault.
            max_infra_retries: Attempts after a crash or a lost worker.
            oom: "auto": a trial whose objective catches an out-of-memory error and goes on is tried again with more
                memory, for its result is that of another configuration. "user": that is the objective's own affair.
            seed: Seed of the trials' random numbers; None: from the system.
            gpus: Devices per trial; only 1.
            probe: Run `vrampool.probing.probe` first, which takes minutes: the study begins with its peaks known, the
                handle keeps what it found as `probe`, and a warning says what does not fit and what to change.

        Raises:
            InputError: something asked for cannot be done; nothing was created.
            UnreachableError: Redis or the database does not answer.
        """
        from vrampool.asking import build_spec, read_directions

        spec, bundle = build_spec(
            self._settings,
            objective,
            n_trials=n_trials,
            total=total,
            study_name=study_name,
            vram=vram,
            sampler=sampler,
            pruner=pruner,
            timeout=timeout,
            trial_timeout_s=trial_timeout_s,
            max_concurrent_trials=max_concurrent_trials,
            max_trials_per_device=max_trials_per_device,
            priority=priority,
            env=env,
            workdir=workdir,
            points=points,
            skip_if_exists=skip_if_exists,
            catch=catch,
            retry_timeouts=retry_timeouts,
            max_infra_retries=max_infra_retries,
            oom=oom,
            seed=seed,
            gpus=gpus,
        )
        wanted = read_directions(direction, directions)
        client = self._open()
        client.check_fits(spec, self._local.record.largest_budget_bytes if self._local is not None else 0)
        findings = None
        if probe:
            from vrampool.probing import probe_first

            findings = probe_first(self, objective, directions=wanted, env=env, workdir=workdir)
        client.prepare_study(spec.study_name, wanted)
        handle = self._handle(client.enter(spec, bundle, sampler, pruner))
        handle.probe = findings
        handle.callbacks = list(callbacks)
        return handle

    def optimize(
        self,
        study: optuna.Study,
        objective: Callable[..., Any] | str,
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int | None = None,
        catch: type[BaseException] | Iterable[type[BaseException]] = (),
        callbacks: Iterable[Callback] | None = None,
        gc_after_trial: bool = False,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> None:
        """Stand in for ``study.optimize(objective, ...)``: same arguments, run by the pool, wait for the end.

        A study in memory is copied into the pool's storage and its trials are mirrored back, number for number; so is
        one in another database than the pool's.

        Args:
            n_jobs: Trials at once; None or -1: as many as fit.
            gc_after_trial: Taken and not needed: each trial has its own process.
            options: Further arguments of `submit`, such as `vram` or `trial_timeout_s`; with `sampler` or `pruner` an
                import path can be named where the study's own object is of a class that cannot travel.

        Raises:
            ObjectiveFailedError: the objective raised an exception that `catch` does not name; an instance of that
                exception's class too, where this process can make one.
            StudyFailedError: the study failed without the objective, by its sampler for example.
            InputError: as in `submit`.
            Exception: what a callback raised; trials that ran have finished.
        """
        from vrampool import mirror
        from vrampool.asking import read_kinds
        from vrampool.remote_errors import study_failed
        from vrampool.storage import SubmissionState

        if study.study_name in self._optimizing or study._thread_local.in_optimize_loop:
            raise RuntimeError("Nested invocation of `Pool.optimize` on one study isn't allowed.")
        if (n_trials is not None and n_trials <= 0) or (timeout is not None and timeout <= 0):
            return  # as Optuna: nothing is asked for, so nothing is done
        if n_jobs is not None and n_jobs != -1:
            options.setdefault("max_concurrent_trials", n_jobs)
        wanted: dict[str, Any] = {"n_trials": n_trials, "timeout": timeout, "catch": read_kinds(catch)}
        wanted |= {"sampler": study.sampler, "pruner": study.pruner, **options}
        self.check(objective, **wanted)  # before the study is copied
        self._open()
        link = mirror.link(self, study)
        self._optimizing.add(study.study_name)
        try:
            directions = [item.name.lower() for item in study.directions]
            try:
                handle = self.submit(objective, study_name=link.study_name, directions=directions, **wanted)
            except BaseException:
                link.abandon()
                raise
            link.follow(handle, list(callbacks or ()), show_progress_bar)
        finally:
            self._optimizing.discard(study.study_name)
        if handle.state is SubmissionState.FAILED:
            raise study_failed(handle.finished_roots(), handle.spec, handle.reason)

    def check(self, objective: Callable[..., Any] | str, **asked: Any) -> None:
        """Check the arguments of `submit` as far as that goes without a pool; nothing is started.

        Raises:
            InputError: something asked for cannot be done.
        """
        from vrampool.asking import build_spec, read_directions

        read_directions(asked.pop("direction", None), asked.pop("directions", None))
        build_spec(self._settings, objective, **asked)

    def _handle(self, handle: Handle) -> Handle:
        handle.check, handle.is_local = self._failure, self._local is not None
        return handle

    def _failure(self) -> None:
        """Raise what ended the local pool by itself, if that happened."""
        if self._local is not None and (error := self._local.failure()) is not None:
            raise error

    # ---- looking -------------------------------------------------------------------------------------

    def attach(self, study_name: str) -> Handle:
        """Return the handle of a study's newest submission, after a restart of the notebook for example.

        Raises:
            StudyError: no submission of this pool has that study.
        """
        client = self._open()
        rows = [row for row in client.catalog.submissions() if row.study_name == study_name]
        if not rows:
            names = sorted({row.study_name for row in client.catalog.submissions()})
            hint = f"; known: {', '.join(names[-5:])}" if names else ""
            raise StudyError(f"this pool has no study {study_name!r}{hint}")
        return self._handle(client.handle_of(max(rows, key=lambda row: row.sequence)))

    def handles(self) -> list[Handle]:
        """Return a handle for every submission of the pool, oldest first; one that cannot be read is warned of."""
        client = self._open()
        found = []
        for row in client.catalog.submissions():
            try:
                found.append(self._handle(client.handle_of(row)))
            except MessageError as error:
                warnings.warn(f"submission {row.id} of study {row.study_name!r} is left out: {error}", stacklevel=2)
        return found

    def devices(self) -> list[WorkerRecord]:
        """Return what each live worker last said of its device."""
        return self._open().registry.workers()

    def queue(self) -> list[WaitingJob]:
        """Return the trials that wait for a device, in the order they are offered."""
        return self._open().queue.waiting()


def _check_system() -> None:
    if platform.system() != "Linux":
        raise OutOfScopeError(f"vrampool runs on Linux, not on {platform.system()}; use a Linux host or WSL 2")
