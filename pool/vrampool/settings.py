"""Frozen settings: the one reader of environment variables and of `vrampool.toml`.

Order: flag, environment, file, default. A flag of None counts as not given.
"""

from __future__ import annotations

import dataclasses
import errno
import getpass
import math
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from vrampool.errors import RequestError, SettingsError
from vrampool.units import parse_budget, parse_bytes

PREFIX = "VRAMPOOL_"
FILE_NAME = "vrampool.toml"
#: Each is a process that may hold hundreds of MiB.
MOST_SPARES = 64


@dataclass(frozen=True)
class Settings:
    """All settings of a process. The comment on each field says its unit and why one would change it."""

    pool: str = "vrampool"  #: name of the pool; it is RQ's queue name and the prefix of our keys
    redis: str | None = None  #: URL; None: the embedded Valkey of the local pool
    storage: str | None = None  #: SQLAlchemy URL; None: SQLite in the state directory
    state_dir: Path = Path()  #: everything a local pool keeps; "" : chosen by `default_state_dir`
    secret: str | None = None  #: signs messages; None: read from `secret_file`
    secret_file: Path | None = None  #: None: `secret` in the state directory, made there for a local pool
    gpu: str = "all"  #: "all", "cpu", or indices, UUIDs, prefixes with commas
    budget: str = "85%"  #: of each device: bytes, "20GiB", "85%"
    vram_total: str | None = None  #: the device's size by hand, where NVML does not tell it
    share: bool = False  #: let this worker share its device with another worker (own budget needed)
    max_trials: int | None = None  #: children at once on a device; None: 16 on a GPU, the number of cores on the CPU
    spares: int = 1  #: children spawned ahead, each for one trial
    start_method: str = "spawn"  #: of trials: "spawn", or "forkserver" where trials are short
    spare_memory: str = "10%"  #: of the host's memory that children which wait may hold, over what `spares` asks for
    concurrency: str = "auto"  #: "auto": as many trials as a card gains from; "memory": as many as fit
    mps: str = "off"  #: NVIDIA's Multi-Process Service: "on", "off", "auto": where caps hold and the budget leaves room
    preload: str = "torch,torch._dynamo?"  #: modules a spare imports; with a ?: once a trial was seen to; "" for none
    lease_ttl_s: float = 6.0  #: a worker silent for longer is taken for dead; twice this plus a beat bounds recovery
    grace_s: float = 30.0  #: after SIGTERM running trials may finish for so long
    checkpoint_dir: Path | None = None  #: of checkpoints, best shared by all hosts; None: in the state directory
    stop_ask_s: float = 2.0  #: a child asked to stop has so long until it is killed
    age_limit_s: float = 120.0  #: a trial passed over for longer earmarks a device
    sample_s: float = 0.5  #: pause between two readings of a device
    nvml_timeout_s: float = 10.0  #: a reading that takes longer stops admission
    give_back_s: float = 30.0  #: a dead trial's memory is awaited for so long, and the end of a killed process
    idle_exit_s: float = 600.0  #: a detached pool with nothing to do ends after so long; 0: never
    log_bytes: int = 256 * 1024  #: kept of each trial's output: a quarter of it from its head, the rest from its tail
    bundle_bytes: int = 8 * 1024**2  #: largest bundle of a notebook objective
    objectives: str = "any"  #: "any", or "import" to refuse bundles
    env_pass: str = ""  #: names of variables that reach the children although they look secret, with commas
    debug: bool = False  #: show tracebacks

    @property
    def beat_s(self) -> float:
        """Pause between two renewals of the liveness leases: a third of their life."""
        return self.lease_ttl_s / 3

    @property
    def preload_modules(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.preload.split(",") if name.strip())

    def with_changes(self, **changes: Any) -> Settings:
        """Return a copy with some fields replaced."""
        return dataclasses.replace(self, **changes)

    def to_env(self) -> dict[str, str]:
        """Return the variables that give a child process (worker, coordinator) the same settings.

        The secret is left out: processes of one host read it from `secret_file`.
        """
        variables = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is not None and item.name != "secret":
                variables[PREFIX + item.name.upper()] = _as_text(value)
        return variables


def _as_text(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def default_state_dir(pool: str, env: Mapping[str, str]) -> Path:
    """Return where a pool keeps its files: XDG state, else HOME, else the temporary directory (no HOME in pods)."""
    if env.get("XDG_STATE_HOME"):
        return Path(env["XDG_STATE_HOME"]) / "vrampool" / pool
    home = env.get("HOME")
    if home and os.access(home, os.W_OK):
        return Path(home) / ".local" / "state" / "vrampool" / pool
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a passwd entry
        user = str(os.getuid())
    return Path(tempfile.gettempdir()) / f"vrampool-{user}" / pool


def make_state_dir(state_dir: Path) -> None:
    """Make the state directory for its owner alone, and see that it can be written.

    Raises:
        SettingsError: it cannot; the text names the option that chooses another.
    """
    probe = state_dir / f".write-{os.getpid()}"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno == errno.ENOSPC and state_dir.is_dir():
            return  # a full disk is emptied again, and no trial needs it
        raise SettingsError(
            f"cannot write to the state directory {state_dir}: {error.strerror}; "
            "choose another with --state-dir or VRAMPOOL_STATE_DIR"
        ) from None


def output_path(state_dir: Path, study_name: str, number: int) -> Path:
    """Return where a trial's stdout and stderr are kept on the host that runs it."""
    folder = "".join(char if char.isalnum() or char in "-_." else "_" for char in study_name)
    if not folder.strip("."):  # a study may be called ".."
        folder = folder.replace(".", "_") or "_"
    return state_dir / "logs" / "trials" / folder / f"{number}.log"


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Read the settings.

    Args:
        flags: Values given by hand, by field name; None values count as not given.
        env: Environment to read instead of the process's own.
        file: Settings file; None: `VRAMPOOL_CONFIG`, else `vrampool.toml` in the working directory if it is there.

    Raises:
        SettingsError: a value has the wrong type, or a name is unknown; the text says where it came from.
    """
    env = os.environ if env is None else env
    known = {item.name: item for item in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}  #: of those that were not given by hand
    for name, value in _read_file(file, env, set(known)).items():
        sources[name] = f"key {name!r} of {file or FILE_NAME}"
        values[name] = _convert(known[name], value, sources[name])
    if "GPU_MEM_FRACTION" in env and PREFIX + "BUDGET" not in env:
        values["budget"] = _fraction(env["GPU_MEM_FRACTION"])
    for name, item in known.items():
        variable = PREFIX + name.upper()
        if variable in env:
            sources[name] = f"variable {variable}"
            values[name] = _convert(item, env[variable], sources[name])
    for name, value in (flags or {}).items():
        if value is not None:
            sources.pop(name, None)
            values[name] = _convert(known[name], value, f"option --{name.replace('_', '-')}")
    settings = Settings(**values)
    if str(settings.state_dir) in ("", "."):
        settings = dataclasses.replace(settings, state_dir=default_state_dir(settings.pool, env))
    try:
        _check(settings)
    except SettingsError as error:
        source = sources.get(str(error).partition(" ")[0])
        raise SettingsError(f"{source}: {error}" if source else str(error)) from None
    return settings


def _read_file(file: Path | None, env: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    path = file or (Path(env[PREFIX + "CONFIG"]) if env.get(PREFIX + "CONFIG") else None)
    if path is None:
        path = Path(FILE_NAME)
        if not path.is_file():
            return {}
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from None
    content = content.get("vrampool", content)
    if not isinstance(content, dict):
        raise SettingsError(f"'vrampool' in the settings file {path} must be a table: [vrampool]")
    unknown = sorted(set(content) - known)
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r} in {path}; known: {', '.join(sorted(known))}")
    return dict(content)


def _fraction(text: str) -> str:
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction <= 1:
        raise SettingsError(f"variable GPU_MEM_FRACTION must be a fraction such as 0.85, not {text!r}")
    return f"{fraction * 100}%"


def _convert(item: dataclasses.Field[Any], value: Any, source: str) -> Any:
    kind = str(item.type)
    try:
        if "bool" in kind:
            if isinstance(value, bool):
                return value
            return {
                "1": True,
                "true": True,
                "yes": True,
                "on": True,
                "0": False,
                "false": False,
                "no": False,
                "off": False,
            }[str(value).strip().lower()]
        if "int" in kind:
            if isinstance(value, bool):
                raise ValueError
            if isinstance(value, float) and not value.is_integer():
                raise ValueError
            return int(value)
        if "float" in kind:
            return float(value)
        if "Path" in kind:
            return Path(value).expanduser().absolute()
        return str(value)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise SettingsError(f"{source} has the value {value!r}, which is not {kind.replace(' | None', '')}") from None


_CHOICES = {
    "start_method": ("spawn", "forkserver"),
    "concurrency": ("auto", "memory"),
    "mps": ("off", "on", "auto"),
}


def _check(settings: Settings) -> None:
    if not settings.pool or not all(char.isalnum() or char in "-_." for char in settings.pool):
        raise SettingsError(f"pool name {settings.pool!r} may hold letters, digits, '-', '_' and '.' only")
    for name in ("lease_ttl_s", "sample_s", "nvml_timeout_s", "give_back_s"):
        if not 0 < getattr(settings, name) < math.inf:
            raise SettingsError(f"{name} must be a number above 0, not {getattr(settings, name)}")
    for name in ("grace_s", "stop_ask_s", "age_limit_s", "idle_exit_s", "spares", "log_bytes"):
        if not 0 <= getattr(settings, name) < math.inf:
            raise SettingsError(f"{name} must be a number, 0 or more, not {getattr(settings, name)}")
    if settings.spares > MOST_SPARES:
        raise SettingsError(f"spares must be at most {MOST_SPARES}, not {settings.spares}")
    if settings.max_trials is not None and settings.max_trials < 1:
        raise SettingsError(f"max_trials must be at least 1, not {settings.max_trials}")
    _check_sizes(settings)
    for name, words in _CHOICES.items():
        if getattr(settings, name) not in words:
            raise SettingsError(f"{name} must be {', '.join(map(repr, words))}, not {getattr(settings, name)!r}")
    if settings.objectives not in ("any", "import"):
        raise SettingsError(f"objectives must be 'any' or 'import', not {settings.objectives!r}")


def _check_sizes(settings: Settings) -> None:
    """See that the sizes can be read; whether a budget fits its device is seen where the device is."""
    try:
        parse_budget(settings.budget, 2**62)
        parse_budget(settings.spare_memory, 2**62, what="spare_memory")
        if settings.vram_total is not None:
            parse_bytes(settings.vram_total, what="vram_total")
    except RequestError as error:
        raise SettingsError(str(error)) from None


def hide_password(url: str) -> str:
    """Return a URL fit for a message: its password replaced by three stars."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
    except ValueError:  # not a URL at all: show nothing of it that could hold a password
        return url.split("@")[-1]
