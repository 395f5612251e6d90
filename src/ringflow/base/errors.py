"""The errors a user can meet, as one small tree.

    RingflowError                 anything we report in one line, without a traceback
    ├── UsageError                the request was wrong: exit code 2
    │   └── SettingsError         a settings file or a `section.field=value` override was wrong
    ├── StoppedError              a signal asked for an end, all is saved: exit code 75, start again to go on
    └── FailureError              the request was fine, the work failed: exit code 1
        ├── InputFileError        a file given by the user is missing, broken or empty
        ├── DatasetError          a dataset is corrupted, incomplete or of another schema
        ├── DiskFullError         no room for what was to be written
        ├── DivergenceError       the loss of a training became NaN or infinite
        └── LostPeerError         another process of the same training is gone

Every message names the offending value and says what to do.
"""

from __future__ import annotations


class RingflowError(Exception):
    """An error with a message written for the user."""

    exit_code = 1
    #: Whether another of several processes that work together tells it.
    told = False


class UsageError(RingflowError):
    """The request itself was wrong."""

    exit_code = 2


class SettingsError(UsageError):
    """A settings file or override was wrong."""


class StoppedError(RingflowError):
    """Stopped by a signal; the same command goes on. The code is EX_TEMPFAIL of sysexits.h: try again later."""

    exit_code = 75


class FailureError(RingflowError):
    """The request was fine but could not be carried out."""


class InputFileError(FailureError):
    """A file given by the user is missing, broken or empty."""


class DatasetError(FailureError):
    """A dataset is corrupted, incomplete or of another schema version."""


class DiskFullError(FailureError):
    """There is no room for what was to be written."""


class DivergenceError(FailureError):
    """The loss of a training became NaN or infinite."""


class LostPeerError(FailureError):
    """Another process of the same training is gone."""
