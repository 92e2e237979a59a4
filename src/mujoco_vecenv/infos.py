"""What a step tells about one environment."""

from typing import Any

Info = dict[str, Any]
