"""What processes tell each other over a network: JSON, never pickle, so that nothing that arrives can run anything.

    text = encode([DataPosition(3, 0, 1)])
    decode(text, list[DataPosition])

Who receives says what it wants: types are made from what was received, not named by it. Numbers come back bit for bit, those
that are not finite, too. An error of ours travels in the place of what was asked for, and is returned, not raised.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json, to_json

from ringflow.base import errors
from ringflow.base.errors import FailureError, RingflowError

#: Nothing that is said is longer. Weights are not said: they travel as tensors.
MOST_BYTES = 2**26


def encode(thing: object) -> bytes:
    """What `decode` understands: plain values, named tuples, dataclasses, models of pydantic, paths, or an error of ours."""
    # What a model says of itself has null for what is not finite.
    said: list[object] = [None, thing.model_dump() if isinstance(thing, BaseModel) else thing]
    if isinstance(thing, RingflowError):
        kind = next(known for known in type(thing).__mro__ if known.__module__ == errors.__name__)
        said = [[kind.__name__, str(thing), thing.exit_code, getattr(thing, "__notes__", [])], None]
    text = to_json(said, inf_nan_mode="constants")
    if len(text) > MOST_BYTES:
        raise FailureError(f"{len(text)} bytes are more than processes may tell each other at once ({MOST_BYTES})")
    return text


def decode(text: bytes, kind: Any = Any) -> Any:
    """What was encoded, as a `kind`, or the error that was sent in its place."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"{len(text)} bytes")
        failure, thing = from_json(text)
        if failure is None:
            return _adapter(kind).validate_python(thing)
        name, message, exit_code, notes = _adapter(tuple[str, str, int, list[str]]).validate_python(failure)
        if not (isinstance(known := getattr(errors, name, None), type) and issubclass(known, RingflowError)):
            raise ValueError(f"an error {name[:40]!r}")
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise FailureError(
            f"another process says what cannot be understood ({reason}); start all with the same version of ringflow"
        ) from None
    made = known(message)
    made.exit_code = exit_code
    for note in notes:
        made.add_note(note)
    return made


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
