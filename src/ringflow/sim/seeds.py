"""Random numbers that belong to an event, not to the order in which events are made."""

from __future__ import annotations

import hashlib


def event_key(*name: str | int) -> int:
    """A 64-bit number that is a pure function of a name such as ("ttbar", seed, event, interaction, attempt)."""
    text = "/".join(map(str, name))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
