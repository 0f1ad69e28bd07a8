"""Scripts about locks, paths, durable files and device memory. Grammar: scripts.py."""

from tests.sim.scripts import LIFE, scripts_of

SCRIPTS = scripts_of(
    {
        "a life lock covers a forked grandchild whose parents are dead": LIFE
        + """
    engine fork child
    child fork grandchild
    outside kill engine
    outside kill child
    server probe probe write 0 1 = held
    outside kill grandchild
    server probe probe write 0 1 = free
    """,
        "a life lock named by the engine alone never frees once the engine restarts": LIFE
        + """
    outside kill engine
    world reap engine
    server probe probe write 0 1 = free
    world fork namesake
    namesake open life /life/engine.1
    namesake lock life read 0 1 = ok
    server probe probe write 0 1 = held
    namesake open mine /life/engine.2 create exclusive
    server open second /life/engine.2
    server probe second write 0 1 = free
    """,
        "two readers do not hinder each other, and the probe takes nothing": LIFE
        + """
    world fork worker
    worker open life /life/engine.1
    worker lock life read 0 1 = ok
    server probe probe read 0 1 = free
    server probe probe write 0 1 = held
    engine close life
    server probe probe write 0 1 = held
    worker close life
    server probe probe write 0 1 = free
    """,
        "one's own lock never stands in one's own way, and a second descriptor of it is the same owner": LIFE
        + """
    engine dup life again
    engine probe again write 0 1 = free
    engine lock again write 0 1 = ok
    engine close life
    server probe probe read 0 1 = held
    engine open other /life/engine.1
    engine lock other read 0 1 = EAGAIN
    engine close other
    server probe probe read 0 1 = held
    """,
        "a range can be unlocked in its middle": LIFE
        + """
    engine lock life write 0 100
    engine lock life none 40 20
    server probe probe write 40 20 = free
    server probe probe write 39 1 = held
    server probe probe write 60 0 = held
    server probe probe write 100 0 = free
    server lock probe write 30 20 = EAGAIN
    server lock probe write 45 5 = ok
    engine lock life read 0 0 = EAGAIN
    """,
        "the range is free only when the last descriptor and the last mapping are gone": """
    outside device gpu 4
    world fork gms
    gms allocate slab gpu 3
    gms allocate more gpu 2 = ENOMEM
    gms map view slab
    gms close slab
    gms free gpu = 1
    gms allocate more gpu 1 = ok
    gms unmap view
    gms free gpu = 3
    """,
        "closing is not freeing while a forked child has the mapping": """
    outside device gpu 4
    world fork gms
    gms allocate slab gpu 3
    gms map view slab
    gms fork child
    gms close slab
    gms unmap view
    gms free gpu = 1
    child close slab
    gms free gpu = 1
    child unmap view
    gms free gpu = 4
    """,
        "a mapping marked so is not in the forked child": """
    outside device gpu 4
    world fork gms
    gms allocate slab gpu 3
    gms map view slab dont_fork
    gms close slab
    gms fork child
    outside kill gms
    child free gpu = 4
    """,
        "a lock lives with the mapping": LIFE
        + """
    engine map first life
    engine unmap first
    server probe probe write 0 1 = held
    engine map view life
    engine close life
    server probe probe write 0 1 = held
    engine unmap view
    server probe probe write 0 1 = free
    """,
        "a replaced directory: same path, other inode, open files live on": LIFE
        + """
    engine stat /life = f1
    engine fstat life = f2
    engine stat /life/engine.1 = f2
    outside replace /life
    engine stat /life = f3
    engine stat /life/engine.1 = ENOENT
    engine fstat life = f2
    server probe probe write 0 1 = held
    server open late /life/engine.1 = ENOENT
    server list /life = empty
    """,
        "a file opened before it was unlinked keeps its lock; one made later under its path is another": LIFE
        + """
    world fork late
    late open life /life/engine.1
    server unlink /life/engine.1
    late lock life read 0 1 = ok
    late fstat life = f1
    late stat /life/engine.1 = ENOENT
    engine close life
    server probe probe write 0 1 = held
    server open other /life/engine.1 create exclusive
    server fstat other = f2
    server probe other write 0 1 = free
    """,
        "exclusive creation, rename over a file, and what a rename does to identity": """
    world fork a
    a open x /x create exclusive = ok
    a open again /x create exclusive = EEXIST
    a open y /y create = ok
    a lock y write 0 1
    a fstat x = f1
    a fstat y = f2
    a rename /x /y = ok
    a stat /x = ENOENT
    a stat /y = f1
    a fstat y = f2
    a open z /y
    a probe z write 0 1 = free
    a rename /x /y = ENOENT
    outside mkdir /d
    a rename /y /d = EISDIR
    a rename /d /y = ENOTDIR
    a open w /y/z create = ENOTDIR
    a open d /d = EISDIR
    a open n /none/x create = ENOENT
    a unlink /d = EISDIR
    """,
        "a durable file is whole after its writer died": """
    outside mkdir /run
    world fork server
    server write /run/holder.json one = ok
    server write /run/holder.json two = ok
    outside kill server
    world fork next
    next read /run/holder.json = two
    next list /run = holder.json holder.json.spare
    """,
        "a durable write that fails leaves the old file and its spare": """
    outside mkdir /run
    world fork server
    server write /run/holder.json one = ok
    server run_out_of_disk
    server write /run/holder.json two = EFBIG
    server read /run/holder.json = one
    server list /run = holder.json holder.json.spare
    """,
        "a flock is one server's, and its forked child's": """
    world fork server
    server open dir /lock create
    server flock dir = ok
    server flock dir = ok
    world fork second
    second open dir /lock
    second flock dir = EAGAIN
    second lock dir write 0 1 = ok
    server fork child
    outside kill server
    second flock dir = EAGAIN
    outside kill child
    second flock dir = ok
    """,
        "memory registered with the kernel outlives its descriptor, and is free in the end": """
    outside device gpu 4
    world fork engine
    engine allocate kv gpu 3
    engine pin kv
    engine close kv
    engine free gpu = 1
    outside kill engine
    outside await_free gpu 4 = ok
    """,
        "memory of one does not free memory of another": """
    outside device gpu 4
    outside device other 2
    world fork a
    world fork b
    a allocate kv gpu 2
    b allocate kv gpu 2
    b allocate no gpu 1 = ENOMEM
    b allocate yes other 1 = ok
    outside kill a
    b free gpu = 2
    b free other = 1
    b allocate now gpu 2 = ok
    """,
    }
)
