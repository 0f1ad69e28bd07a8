"""Small scripts of processes, files, sockets and memory, which both kernels must play alike.

A line is `WHO VERB ARGUMENTS... [= WHAT MUST BE SEEN]`. Names are made up as they are needed: processes, and
descriptors and mappings within a process (a forked child has its parent's). Every line has an answer: `ok`, an error's
name, or what was seen; and after every line it is compared who is gone. The scripts are in cases_*.py; sim_world.py
plays them on the simulated kernel, linux_world.py and linux_actor.py on the real one. `world` is the ancestor and
subreaper of all, and reaps when told.

    outside   kill P | stop P | cont P | state P | mkdir PATH | replace PATH | device D UNITS | await_free D UNITS
              symlink TARGET PATH | mount PATH (a tmpfs) | unmount PATH | close PATH (mode 0) | reopen PATH
    process   fork P | spawn P DESCRIPTOR... | container P | clone_vm P | fork_again P DEAD (with its pid) | reap P
              execute DESCRIPTOR... (another program, with these) | die_with_parent | parent | end_leader
              obey_modes (closed directories are closed for root, too)
              open H PATH [create] [exclusive] | close H | dup H NEW | unlink PATH | rename A B | stat PATH | fstat H
              directory H PATH | open_at H DIRECTORY NAME [create] | stat_at DIRECTORY NAME
              list PATH | read PATH | write PATH TEXT (durable) | exchange A B | real_path PATH | run_out_of_disk
              lock H read|write|none START LENGTH | probe H KIND START LENGTH | flock H
              map M H [dont_fork] | unmap M | allocate H D UNITS | free D | pin H
              listen H PATH | connect H PATH | accept H LISTENER | send H TEXT PASSED... | receive H NEW... | readable H
              listen_abstract H NAME | connect_abstract H NAME | connect_at H DIRECTORY NAME
              pidfd H P | peer H CONNECTION | peer_pid CONNECTION | dead H | inode H | pidfd_pid H | pidfd_kill H
              ballast MIB | ballast_file H MIB (slow to release; the simulated kernel is slow by itself)
"""

from typing import NamedTuple


class Step(NamedTuple):
    who: str
    verb: str
    arguments: tuple[str, ...]
    expected: str | None = None

    def __str__(self) -> str:
        line = " ".join((self.who, self.verb, *self.arguments))
        return line if self.expected is None else f"{line} = {self.expected}"


class Script(NamedTuple):
    name: str
    steps: tuple[Step, ...]
    needs_root: bool = False


def parse(text: str) -> tuple[Step, ...]:
    steps = []
    for line in text.strip().splitlines():
        command, _, expected = line.partition("=")
        words = command.split()
        if words:
            steps.append(Step(words[0], words[1], tuple(words[2:]), expected.strip() or None))
    return tuple(steps)


def scripts_of(texts: dict[str, str], *, needs_root: bool = False) -> tuple[Script, ...]:
    return tuple(Script(name, parse(text), needs_root) for name, text in texts.items())


class Race(NamedTuple):
    """What a death releases one after the other: `server` kills by its pidfd and watches what the other names mean.

    `shown`: pairs of events whose order the real kernel must show beyond doubt, and the simulated one in every run.
    """

    name: str
    steps: tuple[Step, ...]
    pidfd: str
    connection: str
    probe: str
    device: str
    shown: tuple[tuple[str, str], ...]
    needs_root: bool = False


# How many scripts begin

CONNECTED = """
    world fork server
    server listen door /lock.sock
    world fork engine
    engine connect line /lock.sock
    server accept line door
    server peer engine line
"""

LIFE = """
    outside mkdir /life
    world fork engine
    engine open life /life/engine.1 create exclusive
    engine lock life read 0 1
    world fork server
    server open probe /life/engine.1
    server probe probe write 0 1 = held
"""
