"""What a call of `submit` asks for, checked before anything is created, as the spec that is stored."""

from __future__ import annotations

import base64
import json
import math
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vrampool.errors import InputError, ObjectiveError, OutOfScopeError
from vrampool.memory.declared import read_vram
from vrampool.messages import SubmissionSpec
from vrampool.objectives import resolve
from vrampool.objectives.samplers import dump_pruner, dump_sampler
from vrampool.settings import Settings

#: A function of a few parameters takes little; what is larger has caught something it should not.
VRAM_FUNCTION_LIMIT_BYTES = 1024**2
#: What `submit` takes for granted; `check` needs it too.
_DEFAULTS: dict[str, Any] = {
    "n_trials": None,
    "total": None,
    "study_name": None,
    "vram": "auto",
    "sampler": None,
    "pruner": None,
    "timeout": None,
    "trial_timeout_s": None,
    "max_concurrent_trials": None,
    "max_trials_per_device": None,
    "priority": 0,
    "env": None,
    "workdir": None,
    "points": (),
    "skip_if_exists": False,
    "catch": None,
    "retry_timeouts": False,
    "max_infra_retries": 2,
    "oom": "auto",
    "seed": None,
    "gpus": 1,
}


def build_spec(
    settings: Settings, objective: Callable[..., Any] | str, **given: Any
) -> tuple[SubmissionSpec, bytes | None]:
    """Check everything that can be checked without a pool and put it into a spec.

    Args:
        settings: Limits of bundles.
        objective: As `Pool.submit` takes it.
        given: The other arguments of `Pool.submit`, but for direction, directions and callbacks.

    Returns:
        The spec, and the bundle if the objective needs one.

    Raises:
        InputError: something asked for cannot be done.
    """
    asked = _DEFAULTS | given
    if asked["gpus"] != 1:
        raise OutOfScopeError(f"gpus={asked['gpus']}: one trial uses one device here; spread work over trials instead")
    _check_counts(asked)
    _check_environment({str(name): str(value) for name, value in (asked["env"] or {}).items()})
    if asked["study_name"] == "":
        raise InputError("the study's name is empty: give one, or leave it out for a generated one")
    catch = asked["catch"]
    vram = _read_vram(asked["vram"], settings)
    workdir = None if asked["workdir"] is None else str(Path(asked["workdir"]).expanduser().resolve())
    if workdir is not None and not Path(workdir).is_dir():
        raise InputError(f"workdir {workdir} is not a directory")
    reference, bundle = resolve(
        objective,
        workdir=workdir,
        bundle_limit_bytes=settings.bundle_bytes,
        allow_bundles=settings.objectives == "any",
    )
    name = asked["study_name"] or f"{reference.target.rpartition(':')[2] or 'study'}-{uuid.uuid4().hex[:6]}"
    seed = int.from_bytes(os.urandom(4)) if asked["seed"] is None else asked["seed"]
    spec = SubmissionSpec(
        submission_id=uuid.uuid4().hex[:12],
        study_name=name,
        objective=reference,
        n_trials=asked["n_trials"],
        total=asked["total"],
        timeout_s=asked["timeout"],
        trial_timeout_s=asked["trial_timeout_s"],
        catch=None if catch is None else tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in read_kinds(catch)),
        vram=vram,
        max_concurrent_trials=asked["max_concurrent_trials"],
        max_trials_per_device=asked["max_trials_per_device"],
        priority=asked["priority"],
        env={str(key): str(value) for key, value in (asked["env"] or {}).items()},
        sampler=dump_sampler(asked["sampler"]),
        pruner=dump_pruner(asked["pruner"]),
        points=_read_points(asked["points"]),
        skip_if_exists=asked["skip_if_exists"],
        retry_timeouts=asked["retry_timeouts"],
        max_infra_retries=asked["max_infra_retries"],
        oom=asked["oom"],
        seed=seed,
        created_at=time.time(),
        submitter=f"{socket.gethostname()}:{os.getpid()}",
    )
    return spec, bundle


def _read_vram(given: Any, settings: Settings) -> Any:
    """Return what a submission says of its memory as it is stored."""
    named = isinstance(given, str) and ":" in given
    if not named and (isinstance(given, Mapping) or not callable(given)):
        return read_vram(given).to_json()
    try:
        reference, body = resolve(
            given, bundle_limit_bytes=VRAM_FUNCTION_LIMIT_BYTES, allow_bundles=settings.objectives == "any"
        )
    except ObjectiveError as error:
        words = str(error).replace("one trial", "one dict of parameters").removeprefix("objective ")
        raise InputError(f"vram function {words}") from error
    function = reference.to_json()
    return {"function": function if body is None else function | {"body": base64.b64encode(body).decode()}}


#: More trials than that were a slip: no study of Optuna's holds them.
_MOST = 10**9
_PRIORITIES = 10**6


def _check_environment(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in f"{name}{value}" or not name.isprintable():
            raise InputError(f"env names a variable {name!r}, which no environment can hold")


def _check_counts(asked: Mapping[str, Any]) -> None:
    if asked["n_trials"] is not None and asked["total"] is not None:
        raise InputError("give n_trials (how many to add) or total (how many in all), not both")
    priority = asked["priority"]
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _PRIORITIES:
        raise InputError(f"priority must be a whole number, higher ones first, up to {_PRIORITIES}, not {priority!r}")
    for name in ("n_trials", "total", "max_concurrent_trials", "max_trials_per_device"):
        value = asked[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{name} must be a whole number, not {value!r}")
        # Optuna allows n_trials=0 and runs nothing; a pool would wait for nothing, so it is refused as a slip.
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
        if value is not None and value > _MOST:
            raise InputError(f"{name} must be at most {_MOST}, not {value}; a study with a timeout needs no number")
    retries = asked["max_infra_retries"]
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise InputError(f"max_infra_retries must be a whole number, 0 or more, not {retries!r}")
    for name in ("timeout", "trial_timeout_s"):
        value = asked[name]
        if value is not None and (not isinstance(value, (int, float)) or not 0 < value < math.inf):
            raise InputError(f"{name} must be a number of seconds above 0, not {value!r}")
    if asked["oom"] not in ("auto", "user"):
        raise InputError(f"oom must be 'auto' or 'user', not {asked['oom']!r}")


def read_kinds(catch: type[BaseException] | Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    """Return the classes of exceptions that `catch` names: one class, or any number of them.

    Raises:
        InputError: one of them is no class of exceptions.
    """
    kinds = (catch,) if isinstance(catch, type) else tuple(catch)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InputError(f"catch must name classes of exceptions, not {kind!r}")
    return kinds


def _read_points(points: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return starting points as they will be stored: plain JSON values, NumPy's numbers made Python's."""
    found = []
    for point in points:
        if not isinstance(point, Mapping):
            raise InputError(f"a starting point must be a dict of parameters, not {point!r}")
        try:
            found.append(json.loads(json.dumps(dict(point), default=_plain, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise InputError(f"starting point {dict(point)!r} cannot be stored: {error}") from None
    return tuple(found)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no number, text, bool or None")


def read_directions(direction: str | None, directions: Sequence[str] | None) -> list[str] | None:
    """Return the directions asked for; None when none was given."""
    if direction is not None and directions is not None:
        raise InputError("give direction or directions, not both")
    if direction is not None and not isinstance(direction, str):
        raise InputError(f"direction is one word; for several objectives say directions={direction!r}")
    found = [direction] if direction is not None else list(directions) if directions is not None else None
    for item in found or ():
        if item not in ("minimize", "maximize"):
            raise InputError(f"direction must be 'minimize' or 'maximize', not {item!r}")
    return found
