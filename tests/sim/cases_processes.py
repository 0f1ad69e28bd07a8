"""Scripts about births, deaths and zombies, containers among them. Grammar: scripts.py."""

from tests.sim.scripts import CONNECTED, LIFE, scripts_of

SCRIPTS = scripts_of(
    {
        "a plain process dies: end of file, lock and memory are all there once its pidfd is readable": CONNECTED
        + """
    outside device gpu 4
    engine open life /life create
    engine lock life read 0 1
    engine allocate kv gpu 3
    server open probe /life
    server dead engine = alive
    server readable line = no
    outside kill engine
    server dead engine = dead
    server receive line = end
    server probe probe write 0 1 = free
    server free gpu = 4
    """,
        "spawned children inherit nothing, forked children everything": LIFE
        + """
    engine spawn spawned
    engine fork forked
    outside kill engine
    server probe probe write 0 1 = held
    outside kill forked
    server probe probe write 0 1 = free
    outside state spawned = S
    """,
        "a spawned child that was given the descriptor keeps the lock": LIFE
        + """
    engine spawn child life
    outside kill engine
    server probe probe write 0 1 = held
    child close life
    server probe probe write 0 1 = free
    """,
        "a stopped process keeps everything, its peer can write to it, and it can be killed": CONNECTED
        + """
    engine open life /life create
    engine lock life read 0 1
    server open probe /life
    outside stop engine
    outside state engine = T
    server dead engine = alive
    server readable line = no
    server send line one
    server probe probe write 0 1 = held
    outside cont engine
    engine receive line = one open
    outside stop engine
    server pidfd_kill engine = ok
    server dead engine = dead
    server receive line = end
    """,
        "a child that asked for it dies with its parent, one that did not lives on": """
    world fork parent
    parent fork armed
    armed die_with_parent
    parent fork unarmed
    armed parent = parent
    outside kill parent
    outside state armed = Z
    outside state unarmed = S
    unarmed parent = world
    unarmed die_with_parent = ok
    outside state unarmed = S
    """,
        "a child that arms after its parent died is not killed": """
    world fork parent
    parent fork child
    outside kill parent
    child die_with_parent
    child parent = world
    outside state child = S
    """,
        "being armed is not inherited by a fork": """
    world fork parent
    parent fork child
    child die_with_parent
    child fork grandchild
    outside kill parent
    outside state child = Z
    outside state grandchild = S
    grandchild parent = world
    """,
        "a leader that ended shows Z and is not dead": CONNECTED
        + """
    outside device gpu 4
    engine allocate kv gpu 3
    engine end_leader
    outside state engine = Z
    server dead engine = alive
    server free gpu = 1
    server readable line = no
    engine send line living
    server receive line = living open
    outside kill engine
    server dead engine = dead
    server free gpu = 4
    """,
        "the end of the parent's thread kills the children that asked for it": """
    world fork parent
    parent fork armed
    armed die_with_parent
    parent fork unarmed
    parent end_leader
    outside state armed = Z
    outside state parent = Z
    unarmed parent = parent
    outside kill parent
    unarmed parent = world
    """,
        "a child in the same address space keeps the memory after the pidfd": CONNECTED
        + """
    outside device gpu 4
    engine allocate kv gpu 3
    engine map view kv
    engine close kv
    engine clone_vm child
    outside kill engine
    server dead engine = dead
    server free gpu = 1
    outside kill child
    server free gpu = 4
    """,
        "a child in the same address space has its own descriptors": CONNECTED
        + """
    engine clone_vm child
    engine close line
    server readable line = no
    outside kill child
    server receive line = end
    """,
        "a zombie is gone and can be named until it is reaped": CONNECTED
        + """
    server pidfd_pid engine = engine
    outside kill engine
    outside state engine = Z
    server dead engine = dead
    server pidfd_pid engine = engine
    server pidfd_kill engine = ok
    server pidfd late engine = ok
    server dead late = dead
    server reap engine = ECHILD
    world reap engine = ok
    outside state engine = none
    server pidfd_pid engine = -1
    server pidfd_kill engine = ESRCH
    server pidfd later engine = ESRCH
    world reap engine = ECHILD
    server peer again line = ok
    server dead again = dead
    """,
        "the orphan's zombie is its new parent's to reap": """
    world fork parent
    parent fork child
    parent reap child = EAGAIN
    outside kill child
    world reap child = ECHILD
    outside kill parent
    outside state child = Z
    world reap child = ok
    """,
    }
)

SCRIPTS += scripts_of(
    {
        "a container's init takes its whole container with it": """
    outside device gpu 4
    world fork server
    server listen door /lock.sock
    world container init
    init fork worker
    worker fork helper
    worker allocate kv gpu 3
    worker connect line /lock.sock
    server accept line door
    server peer worker line
    outside kill init
    server dead worker = dead
    server free gpu = 4
    outside state worker = none
    outside state helper = none
    """,
        "an orphan in a container is its init's child": """
    world container init
    init fork worker
    worker fork helper
    init parent = 0
    helper parent = worker
    outside kill worker
    helper parent = init
    init reap worker = ok
    outside kill helper
    init reap helper = ok
    """,
        "sibling containers: no pid, no kill, but a pidfd that tells the death, and its inode": """
    world container server
    server listen door /lock.sock
    world container engine
    engine connect line /lock.sock
    server accept line door
    server peer_pid line = 0
    server peer engine line = ok
    server pidfd_pid engine = 0
    server dead engine = alive
    server pidfd_kill engine = EINVAL
    server inode engine = p1
    engine pidfd self engine
    engine inode self = p1
    outside kill engine
    server dead engine = dead
    world reap engine
    server pidfd_pid engine = -1
    server inode engine = p1
    """,
        "from outside a container its processes can be seen and killed": """
    world fork server
    server listen door /lock.sock
    world container init
    init fork engine
    engine connect line /lock.sock
    engine peer server line
    engine pidfd_kill server = EINVAL
    engine peer_pid line = 0
    server accept line door
    server peer_pid line = engine
    server peer engine line
    server pidfd_pid engine = engine
    server pidfd_kill engine = ok
    server dead engine = dead
    outside state init = S
    """,
        "a pid that is used again names another process; its old pidfd does not": """
    world container init
    init fork old
    init pidfd old old
    init inode old = p1
    outside kill old
    init reap old
    init fork_again new old
    init pidfd new new
    init inode new = p2
    init dead old = dead
    init dead new = alive
    init pidfd_kill old = ESRCH
    init dead new = alive
    init inode old = p1
    init pidfd_pid old = -1
    """,
        "a frozen process keeps everything, and a kill waits for the thaw": CONNECTED
        + """
    outside freeze engine
    server pidfd_kill engine = ok
    server dead engine = alive
    server readable line = no
    server send line one
    outside cont engine
    server dead engine = alive
    outside thaw engine
    server dead engine = dead
    """,
    },
    needs_root=True,
)
