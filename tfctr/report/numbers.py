"""Numbers as people read them."""

import time

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short(value: float | None, unit: str = "") -> str:
    """Returns three digits and a decimal prefix, such as `1.23M` or `45.6 GB`."""
    if value is None:
        return "–"
    space = " " if unit else ""
    for size, prefix in _UNITS:
        if abs(value) >= size * 0.9995:
            scaled = value / size
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f}{space}{prefix}{unit}"
    return f"{value:,.0f}{space}{unit}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def duration(seconds: float | None) -> str:
    """Returns `450 ms`, `12.3 s`, `4 min 05 s` or `3 h 20 min`."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def moment(seconds: float) -> str:
    """Returns the minute, in UTC, of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def metric(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
