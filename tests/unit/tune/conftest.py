"""What the tests of tuning share lies beside them: made-up trials, made-up studies."""

from __future__ import annotations
