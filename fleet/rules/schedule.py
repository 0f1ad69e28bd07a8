"""A cron line as systemd's calendar, and the files that run a command under a lease at those times. Pure.

We write no scheduler: systemd and Kubernetes have one each. Both may start late, or twice; the lease sees to the rest.
"""

import json
import re
from collections.abc import Sequence
from functools import partial

from sidecar.terminal.names import BadValue

_DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))
_PART = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d+))?")
_yaml = partial(json.dumps, ensure_ascii=False)  # a JSON text is one of YAML
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


def calendar(cron: str) -> list[str]:
    """`OnCalendar=` values. Two where cron means "this day of the month, or that of the week". Raises BadValue."""
    fields = cron.split()
    if len(fields) != 5:
        raise BadValue(f"{cron!r} is no time; allowed: cron's five fields such as '0 3 * * *' (every day at 3)")
    minute, hour, day, month, weekday = (_values(text, *field) for text, field in zip(fields, _FIELDS, strict=True))
    time = f"{_list(hour)}:{_list(minute)}:00"
    days = ",".join(dict.fromkeys(_DAYS[number % 7] for number in sorted(weekday or ())))
    by_day, by_week = f"*-{_list(month)}-{_list(day)} {time}", f"{days} *-{_list(month)}-* {time}"
    if weekday is None:
        return [by_day]
    return [by_week] if day is None else [by_day, by_week]


def _values(text: str, what: str, least: int, most: int) -> list[int] | None:
    """None: all of them."""
    if text == "*":
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, last, step = 0, -1, 0
        if (match := _PART.fullmatch(part)) is not None and not (match[1] == "*" and match[2]):
            first, step = least if match[1] == "*" else _number(match[1], what), int(match[3] or 1)
            last = most if match[1] == "*" or (match[3] and not match[2]) else _number(match[2] or match[1], what)
        if not (step and least <= first <= last <= most):
            allowed = f"{least} to {most}, *, lists (1,2), ranges (1-5) and steps (*/2)"
            raise BadValue(f"{text!r} is no {what}; allowed: {allowed}")
        found.update(range(first, last + 1, step))
    return sorted(found)


def _number(text: str, what: str) -> int:
    names = {"month": _MONTHS, "day of the week": _DAYS}.get(what, ())
    if text.capitalize() in names:
        return names.index(text.capitalize()) + (what == "month")
    return int(text) if text.isascii() and text.isdigit() else -1


def _list(values: Sequence[int] | None) -> str:
    return "*" if values is None else ",".join(f"{value:02d}" for value in values)


# -- the files -----------------------------------------------------------------------------------------------------


def systemd(name: str, cron: str, words: Sequence[str], within_s: float) -> str:
    times = "\n".join(f"OnCalendar={each}" for each in calendar(cron))
    return f"""\
# /etc/systemd/system/{name}.service
[Unit]
Description=fleetctl: {name}
After=network-online.target

[Service]
Type=oneshot
ExecStart={" ".join(_systemd_word(word) for word in words)}
TimeoutStartSec={within_s + 60:.0f}

# /etc/systemd/system/{name}.timer
[Timer]
{times}

[Install]
WantedBy=timers.target

# systemctl daemon-reload && systemctl enable --now {name}.timer
"""


def cron_job(name: str, cron: str, words: Sequence[str], within_s: float, image: str) -> str:
    calendar(cron)
    *others, weekday = cron.split()
    if (days := _values(weekday, *_FIELDS[4])) is not None:  # Kubernetes knows no 7
        cron = " ".join([*others, ",".join(map(str, sorted({day % 7 for day in days})))])
    command = "\n".join(f"                - {_yaml(word.replace('$', '$$'))}" for word in words)  # it expands $(NAME)
    return f"""\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {name}
spec:
  schedule: {_yaml(cron)}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  jobTemplate:
    spec:
      backoffLimit: 0
      activeDeadlineSeconds: {within_s + 60:.0f}
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: run
              image: {_yaml(image)}
              command:
{command}
"""


def _systemd_word(word: str) -> str:
    """Its own quoting: no shell is there, and % and $ mean something."""
    quoted = re.sub(r'(["\\])', r"\\\1", word.replace("%", "%%").replace("$", "$$"))
    quoted = re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", quoted)
    return word if _PLAIN.fullmatch(word) else f'"{quoted}"'
