"""Rows of a comparison with published figures."""

from __future__ import annotations

Row = dict[str, object]


def within(name: str, published: float, measured: float, relative: float) -> Row:
    """A figure that must lie within a relative distance of the published one."""
    accept = f"{published * (1 - relative):.4g} to {published * (1 + relative):.4g}"
    return {
        "name": name,
        "published": published,
        "measured": measured,
        "accept": accept,
        "ok": abs(measured / published - 1.0) <= relative,
    }


def at_most(name: str, published: float, measured: float, limit: float) -> Row:
    """A figure that must not exceed a limit."""
    return {
        "name": name,
        "published": published,
        "measured": measured,
        "accept": f"<= {limit:g}",
        "ok": measured <= limit,
    }


def at_least(name: str, published: float, measured: float, limit: float) -> Row:
    """A figure that must not fall below a limit."""
    return {
        "name": name,
        "published": published,
        "measured": measured,
        "accept": f">= {limit:g}",
        "ok": measured >= limit,
    }
