"""Deaths whose steps can be seen one after the other, and in which order they must be seen. Grammar: scripts.py."""

from tests.sim.scripts import Race, parse

_RACE = """
    outside device gpu 4
    world fork server
    server open probe /life create
    server listen door /lock.sock
"""

RACES = (
    Race(
        "a lock above a big file is free long before what lies below",
        parse(
            _RACE
            + """
    world fork victim
    victim allocate kv gpu 1
    victim ballast_file big 192
    victim open life /life
    victim lock life read 0 1
    victim connect line /lock.sock
    server accept line door
    server peer victim line
    """
        ),
        "victim",
        "line",
        "probe",
        "gpu",
        (("end", "freed"), ("unlocked", "freed"), ("unlocked", "dead"), ("end", "dead")),
    ),
    Race(
        "a connection below a big file ends only after the lock and memory above it",
        parse(
            _RACE
            + """
    world fork victim
    victim connect line /lock.sock
    victim ballast_file big 192
    victim open life /life
    victim lock life read 0 1
    victim allocate kv gpu 1
    server accept line door
    server peer victim line
    """
        ),
        "victim",
        "line",
        "probe",
        "gpu",
        (("freed", "end"), ("unlocked", "end"), ("unlocked", "dead"), ("freed", "dead")),
    ),
    Race(
        "memory that is only mapped goes after every descriptor",
        parse(
            _RACE
            + """
    world fork victim
    victim allocate kv gpu 1
    victim map view kv
    victim close kv
    victim open life /life
    victim ballast_file big 192
    victim lock life read 0 1
    victim connect line /lock.sock
    server accept line door
    server peer victim line
    """
        ),
        "victim",
        "line",
        "probe",
        "gpu",
        (("end", "unlocked"), ("end", "freed"), ("end", "dead")),
    ),
    Race(
        "a container's init: end of file and life lock come long before its container's memory is free",
        parse(
            _RACE
            + """
    world container victim
    victim fork worker
    worker allocate kv gpu 3
    worker ballast 192
    victim open life /life
    victim lock life read 0 1
    victim connect line /lock.sock
    server accept line door
    server peer victim line
    """
        ),
        "victim",
        "line",
        "probe",
        "gpu",
        (("end", "freed"), ("unlocked", "freed"), ("end", "dead"), ("unlocked", "dead")),
        needs_root=True,
    ),
)
