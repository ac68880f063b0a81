"""Errors a caller can act on.

::

    VrampoolError
     ├─ InputError              wrong input; nothing was started (exit code 2)
     │   ├─ SettingsError       a flag, variable or key of the settings file
     │   ├─ ObjectiveError      the objective cannot be found, bundled or called
     │   ├─ RequestError        a memory request with bad units, or beyond every device
     │   ├─ StudyError          the study differs from what was asked (directions, storage kind)
     │   ├─ SchemaError         the storage belongs to another version
     │   ├─ OutOfScopeError     something this project does not do
     │   └─ AlreadyRunningError  the folder's embedded server runs already: attach to it
     ├─ UnreachableError        Redis or the database does not answer, or refuses us (exit code 2)
     ├─ StaleLeaderError        another coordinator leads the pool, or our leadership ran out
     ├─ DeviceConflictError     another worker holds the device (exit code 2)
     ├─ DeviceLostError         the driver no longer answers for the device (exit code 3)
     ├─ StudyFailedError        the study ended without what was asked (exit code 1)
     │   └─ ObjectiveFailedError  the objective raised outside `catch`; carries the remote traceback
     └─ MessageError            a message that is unsigned, altered, replayed or of another wire format

Each text is one or two lines: what is wrong, and what to do.
"""

from __future__ import annotations


class VrampoolError(Exception):
    """Root of all errors of this project."""

    exit_code = 1


class InputError(VrampoolError):
    """Raised before anything starts, when what was asked cannot be done. Change the input."""

    exit_code = 2


class SettingsError(InputError):
    """Raised when a setting has no valid value. The text names the flag, variable or key."""


class ObjectiveError(InputError):
    """Raised when the objective cannot be imported, bundled or called with one trial."""


class RequestError(InputError):
    """Raised when a memory request cannot be read, or is larger than every device of the pool."""


class StudyError(InputError):
    """Raised when the named study exists with other directions, or its storage cannot be shared."""


class SchemaError(InputError):
    """Raised when the storage was written by another version. Upgrade it, or use another database."""


class OutOfScopeError(InputError):
    """Raised for what this project does not do: other systems than Linux, two devices for one trial."""


class AlreadyRunningError(InputError):
    """Raised when an embedded server is started in a folder where one runs. Attach to that one, or stop it."""


class UnreachableError(VrampoolError):
    """Raised when Redis or the database cannot be used. The text names which, its address and a remedy."""

    exit_code = 2


class StaleLeaderError(VrampoolError):
    """Raised when a coordinator enqueues without leading the pool. Stop asking for trials, and acquire again."""


class DeviceConflictError(VrampoolError):
    """Raised when a second worker is started on a device. Stop the first, or share with `--share`."""

    exit_code = 2


class DeviceLostError(VrampoolError):
    """Raised when the driver no longer answers for a device. The host needs attention."""

    exit_code = 3


class StudyFailedError(VrampoolError):
    """Raised when a study ended without what was asked of it."""


class ObjectiveFailedError(StudyFailedError):
    """Raised by `Pool.optimize` for an exception of the objective that `catch` does not name.

    It is an instance of the class that was raised, too, where the submitting process has that class and can make one:
    ``except ValueError:`` catches it as it does around `study.optimize`.

    Attributes:
        type_name: Qualified name of the exception's class as raised in the child.
        remote_traceback: The traceback as text, from the child.
        trial_number: Number of the trial that raised.
    """

    def __init__(self, text: str, *, type_name: str = "", remote_traceback: str = "", trial_number: int = -1) -> None:
        Exception.__init__(self, text)  # not the next class's own: it may want other arguments
        self.type_name = type_name
        self.remote_traceback = remote_traceback
        self.trial_number = trial_number

    def __str__(self) -> str:
        return str(self.args[0])


class MessageError(VrampoolError):
    """Raised when a message is refused: unsigned, altered, meant for another job, or of a newer wire format."""
