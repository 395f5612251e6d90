"""Operations of torch that ONNX, or ONNX Runtime in float64, lacks, spelled in those they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Numbers of types in ONNX.
_FLOAT32, _FLOAT64 = 1, 11


def _operators() -> Any:
    """Those of the standard; imported late, since they are slow to load."""
    from onnxscript import opset18

    return opset18


def _hypot(x: Any, y: Any) -> Any:
    """Length in the plane; detectors are far too small for squares to overflow."""
    op = _operators()
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


def _asinh(x: Any) -> Any:
    """By the logarithm of a sum, in float64, where it loses no digits that anyone sees."""
    op = _operators()
    size = op.Cast(op.Abs(x), to=_FLOAT64)
    one = op.CastLike(op.Constant(value_float=1.0), size)
    found = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(size, size), one))))
    return op.Mul(op.Sign(x), op.CastLike(found, x))


def _atan2(y: Any, x: Any) -> Any:
    """Of float64: the angle in float32, and what remains after turning by it, whose tangent is its size."""
    op = _operators()
    rough = op.CastLike(_float_atan2(op.Cast(y, to=_FLOAT32), op.Cast(x, to=_FLOAT32)), x)
    cosine, sine = op.Cos(rough), op.Sin(rough)
    along = op.Add(op.Mul(x, cosine), op.Mul(y, sine))
    across = op.Sub(op.Mul(y, cosine), op.Mul(x, sine))
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    one = op.CastLike(op.Constant(value_float=1.0), x)
    at_origin = op.Equal(along, zero)
    return op.Add(rough, op.Where(at_origin, zero, op.Div(across, op.Where(at_origin, one, along))))


def _float_atan2(y: Any, x: Any) -> Any:
    """In float32, of the smaller over the larger, so that no quotient is more than one."""
    op = _operators()
    zero, one = op.Constant(value_float=0.0), op.Constant(value_float=1.0)
    width, height = op.Abs(x), op.Abs(y)
    longer, shorter = op.Max(width, height), op.Min(width, height)
    angle = op.Atan(op.Div(shorter, op.Where(op.Equal(longer, zero), one, longer)))
    angle = op.Where(op.Greater(height, width), op.Sub(op.Constant(value_float=torch.pi / 2), angle), angle)
    angle = op.Where(op.Less(x, zero), op.Sub(op.Constant(value_float=torch.pi), angle), angle)
    return op.Where(op.Less(y, zero), op.Neg(angle), angle)


#: For the exporter.
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.hypot.default: _hypot,
    torch.ops.aten.asinh.default: _asinh,
    torch.ops.aten.atan2.default: _atan2,
}
