"""Errors over gRPC: a failed call carries its error's class, code and hint, and the caller raises the same class again."""

from __future__ import annotations

import json

import grpc

from rmgr import errors

#: Trailing metadata of a failed call: class, code and hint of the error.
ERROR_KEY = "rmgr-error"
#: A message of an error is cut after so many characters: it travels in a header, and headers are limited.
_ERROR_CHARS = 2000
#: What gRPC says of a server whose certificate is not the one that was expected.
_NOT_THE_ONE = ("CERTIFICATE_VERIFY_FAILED", "Verification Check failed", "is not in peer certificate")

_STATUS = {
    "USAGE": grpc.StatusCode.INVALID_ARGUMENT,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "PERMISSION": grpc.StatusCode.PERMISSION_DENIED,
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "RESOURCE_EXHAUSTED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "INFEASIBLE": grpc.StatusCode.FAILED_PRECONDITION,
    "CONFLICT": grpc.StatusCode.ABORTED,
}


def fail(context: grpc.ServicerContext, error: errors.RmgrError) -> None:
    """Ends a call with `error`; raises, so that the handler ends as well."""
    told = {"type": type(error).__name__, "code": error.code, "hint": error.hint[:_ERROR_CHARS]}
    context.set_trailing_metadata(((ERROR_KEY, json.dumps(told)),))
    context.abort(_STATUS.get(error.code, grpc.StatusCode.INTERNAL), error.message[:_ERROR_CHARS])


def named_error(name: str, message: str, hint: str) -> errors.RmgrError:
    """The error of class `name` of `rmgr.errors`; a class that this release does not know is an RmgrError."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.RmgrError)):
        kind = errors.RmgrError
    made = kind.__new__(kind)
    errors.RmgrError.__init__(made, message, hint=hint)
    return made


def rebuild(error: grpc.RpcError, endpoint: str) -> errors.RmgrError:
    """The error of the peer as its own class, or Unavailable when there was no answer."""
    trailing = dict(error.trailing_metadata() or ())
    if ERROR_KEY in trailing:
        try:
            told = json.loads(trailing[ERROR_KEY])
            return named_error(str(told["type"]), error.details() or "", str(told["hint"]))
        except (*errors.UNREADABLE_TEXT, KeyError, TypeError):
            return errors.Unavailable(f"{endpoint} answers with an error that cannot be read", hint="rmgr version")
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Unavailable(f"{endpoint} did not answer in time", hint="rmgr doctor")
    details = error.details() or ""
    if any(words in details for words in _NOT_THE_ONE):
        return errors.PermissionDenied(
            f"what answers at {endpoint} has no certificate of this cluster for what it should be",
            hint="is the address right? is [security] dir (RMGR_SECURITY_DIR) that of this cluster?",
        )
    if "WRONG_VERSION_NUMBER" in details:
        return errors.PermissionDenied(
            f"what answers at {endpoint} does not speak TLS: that cluster is open, and here are credentials",
            hint="is the address right? for an open cluster unset [security] dir (RMGR_SECURITY_DIR)",
        )
    if details.startswith("failed to connect") and details.endswith("Socket closed"):
        hint = "it hangs up at once: if that cluster is secured, set RMGR_SECURITY_DIR to your bundle of it; rmgr doctor"
        return errors.Unavailable(f"{endpoint} does not talk to us", hint=hint)
    return errors.Unavailable(f"{endpoint} cannot be reached ({code.name.lower().replace('_', ' ')})", hint="rmgr doctor")
