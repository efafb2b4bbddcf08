"""What every daemon measures of itself: its release, and how long its certificates last."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from prometheus_client.metrics import Gauge
from prometheus_client.registry import CollectorRegistry

from rmgr.model.base.version import PROTOCOL
from rmgr.runtime.release import package_version

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials

_RELEASE = ["version", "protocol", "python"]


class CommonMetrics:
    """Adds them to the registry of a daemon. credentials: None in an open cluster, where there are no certificates."""

    def __init__(self, registry: CollectorRegistry, credentials: Credentials | None) -> None:
        build = Gauge("rmgr_build_info", "1; what this daemon runs", _RELEASE, registry=registry)
        build.labels(package_version() or "unknown", str(PROTOCOL), platform.python_version()).set(1)
        if credentials is not None:
            days = Gauge("rmgr_certificate_days_left", "days until the first certificate of this daemon ends", registry=registry)
            days.set_function(credentials.days_left)
