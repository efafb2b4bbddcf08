"""Libraries, functions and types of `ctypes` in pickles: a worker loads the same library; arrays, pointers and types of functions, which no
module has under their names, are made again.

Imported by clients and workers: standard library only.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

#: What a library was told of a function: (argtypes, restype, errcheck).
_Signature = tuple[Any, Any, Any]
_USES_ERRNO = 8


def is_of_ctypes(kind: type) -> bool:
    """Returns whether a class may be one of ctypes."""
    of: Any = type(kind)
    return kind.__module__ == "_ctypes" or (of is not type and any(parent.__module__ == "_ctypes" for parent in of.__mro__))


def library(thing: Any) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """Returns how a `CDLL` is pickled."""
    from ctypes import _CFuncPtr  # type: ignore[attr-defined]

    name = thing._name  # noqa: SLF001 - listed among others' names
    if isinstance(name, str) and os.sep in name:
        name = os.path.abspath(name)
    told = {key: _signature(value) for key, value in vars(thing).items() if isinstance(value, _CFuncPtr)}
    return _library, (type(thing), name, bool(thing._FuncPtr._flags_ & _USES_ERRNO), told)  # noqa: SLF001 - as above


def function(thing: Any) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
    """Returns how a function of a library is pickled, None if it is of none."""
    from ctypes import CDLL

    of = (thing._objects or {}).get("0") if hasattr(thing, "_objects") else None  # noqa: SLF001 - listed among others' names
    return (_function, (of, thing.__name__, _signature(thing))) if isinstance(of, CDLL) else None


def made_type(kind: Any) -> tuple[Callable[..., object], tuple[Any, ...]] | None:
    """Returns how an array, pointer or function type is pickled that ctypes has made, or a metaclass of it; None for other classes."""
    import ctypes

    for base in (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._Pointer, ctypes._CFuncPtr, ctypes.c_int):  # type: ignore[attr-defined] # noqa: SLF001 - as above
        if kind is type(base):
            return type, (base,)
    order = f"__ctype_{kind.__name__.rpartition('_')[2]}__"  # of the bytes, in structures of a fixed order
    if kind.__module__ == "ctypes" and getattr(known := getattr(ctypes, kind.__qualname__, None), order, None) is kind:
        return getattr, (known, order)
    if kind.__bases__ == (ctypes.Array,) and kind.__name__ == f"{kind._type_.__name__}_Array_{kind._length_}":
        return operator.mul, (kind._type_, kind._length_)
    if kind.__bases__ == (ctypes._Pointer,) and kind.__name__ == f"LP_{kind._type_.__name__}":  # noqa: SLF001 - as above
        return ctypes.POINTER, (kind._type_,)
    if kind.__name__ == "CFunctionType" and kind.__module__ == "ctypes":
        return _function_type, (kind._restype_, kind._argtypes_, bool(kind._flags_ & _USES_ERRNO))
    return None


def members(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Returns the members of a structure or union without what its `_fields_` make, those last; the members of other classes."""
    import ctypes

    if not issubclass(kind, ctypes.Structure | ctypes.Union) or "_fields_" not in found:
        return found
    kept = {name: value for name, value in found.items() if name != "_fields_" and type(value).__name__ != "CField"}
    return kept | {"_fields_": found["_fields_"]}


def _signature(function: Any) -> _Signature:
    return function.argtypes, function.restype, getattr(function, "errcheck", None)


def _library(kind: Any, name: str | None, uses_errno: bool, told: dict[str, _Signature]) -> object:
    found = kind(name, use_errno=uses_errno)
    for key, signature in told.items():
        _function(found, key, signature)
    return found


def _function(of: Any, name: str, signature: _Signature) -> object:
    found = getattr(of, name)
    arguments, result, check = signature
    if arguments is not None:
        found.argtypes = arguments
    found.restype = result
    if check is not None:
        found.errcheck = check
    return found


def _function_type(result: Any, arguments: tuple[Any, ...], uses_errno: bool) -> object:
    import ctypes

    return ctypes.CFUNCTYPE(result, *arguments, use_errno=uses_errno)
