"""Scripts about connections, who is at their other end, and what travels on them. Grammar: scripts.py."""

from tests.sim.scripts import CONNECTED, scripts_of

SCRIPTS = scripts_of(
    {
        "a forked child keeps the connection open after its connector is dead": CONNECTED
        + """
    engine fork child
    outside kill engine
    server dead engine = dead
    server readable line = no
    child send line hello
    server receive line = hello open
    outside kill child
    server receive line = end
    """,
        "what was sent before a death is read before the end of file": CONNECTED
        + """
    engine send line one
    engine send line two
    outside kill engine
    server receive line = one two end
    server receive line = end
    server send line late = EPIPE
    """,
        "a client whose answer was never read sees an end, not an error": CONNECTED
        + """
    server send line granted
    engine send line unread
    server close line
    engine receive line = granted end
    """,
        "a passed descriptor outlives the exporter": CONNECTED
        + """
    outside device gpu 4
    engine allocate kv gpu 3
    engine send line take kv
    outside kill engine
    server free gpu = 1
    server receive line kv = take+1 end
    server free gpu = 1
    server close kv
    server free gpu = 4
    """,
        "a descriptor in flight keeps memory and lock until its receiver dies": CONNECTED
        + """
    outside device gpu 4
    engine allocate kv gpu 3
    engine open life /life create
    engine lock life read 0 1
    engine send line take kv life
    engine close kv
    engine close life
    engine open probe /life
    engine free gpu = 1
    engine probe probe write 0 1 = held
    outside kill server
    engine free gpu = 4
    engine probe probe write 0 1 = free
    """,
        "descriptors come in order, each with its message": CONNECTED
        + """
    engine open x /x create
    engine open y /y create
    engine lock x write 0 1
    engine send line plain
    engine send line first x
    engine send line second y x
    server receive line a b c = plain first+1 second+2 open
    engine fstat x
    server fstat a
    server fstat b
    server fstat c
    server probe a write 0 1 = free
    server probe b write 0 1 = free
    server open own /x
    server probe own write 0 1 = held
    """,
        "a connection that was passed stays open with its new owner": CONNECTED
        + """
    world fork heir
    heir connect will /lock.sock
    server accept will door
    server send will yours line
    server close line
    heir receive will line = yours+1 open
    engine send line hello
    heir receive line = hello open
    outside kill server
    engine readable line = no
    heir peer engine line
    outside kill engine
    heir dead engine = dead
    heir receive line = end
    """,
        "a pidfd that was passed still tells the death": CONNECTED
        + """
    world fork waiter
    waiter connect line /lock.sock
    server accept waiter door
    server send waiter keep engine
    outside kill server
    waiter receive line holder = keep+1 end
    waiter dead holder = alive
    waiter pidfd_kill holder = ok
    waiter dead holder = dead
    """,
        "two connections of one process have one pidfs inode": CONNECTED
        + """
    engine connect second /lock.sock
    server accept second door
    server peer again second
    server inode engine = p1
    server inode again = p1
    engine pidfd self engine
    engine inode self = p1
    world fork other
    other connect line /lock.sock
    server accept other door
    server peer other other
    server inode other = p2
    """,
        "a restarted namesake has another pidfs inode": CONNECTED
        + """
    server inode engine = p1
    outside kill engine
    world reap engine
    server inode engine = p1
    world fork engine2
    engine2 connect line /lock.sock
    server accept line2 door
    server peer engine2 line2
    server inode engine2 = p2
    """,
        "a forked child that speaks on its parent's connection is still its parent": CONNECTED
        + """
    engine fork child
    outside kill engine
    server peer again line = ok
    server inode engine = p1
    server inode again = p1
    server peer_pid line = engine
    """,
        "a peer that is dead and reaped before it is accepted is named, and dead": """
    world fork server
    server listen door /lock.sock
    world fork engine
    engine connect line /lock.sock
    engine send line hello
    outside kill engine
    world reap engine
    server readable door = yes
    server accept line door = ok
    server peer engine line = ok
    server dead engine = dead
    server pidfd_pid engine = -1
    server receive line = hello end
    """,
        "the one who listened is the peer of the one who connected": CONNECTED
        + """
    engine peer server line
    engine dead server = alive
    engine inode server
    server pidfd self server
    server inode self
    outside kill server
    engine dead server = dead
    engine receive line = end
    """,
        "who waits in the backlog when the listener dies sees the end": """
    world fork server
    server listen door /lock.sock
    world fork engine
    engine connect line /lock.sock
    engine send line hello = ok
    engine readable line = no
    outside kill server
    engine receive line = end
    engine send line again = EPIPE
    engine connect second /lock.sock = ECONNREFUSED
    """,
        "a listener lives in a forked child": """
    world fork server
    server listen door /lock.sock
    server fork child
    outside kill server
    world fork engine
    engine connect line /lock.sock = ok
    child accept line door = ok
    engine peer listener line
    engine dead listener = dead
    """,
        "a socket's path: in use, removed, made again": """
    world fork server
    server listen door /lock.sock = ok
    world fork second
    second listen door /lock.sock = EADDRINUSE
    server stat /lock.sock = f1
    second unlink /lock.sock = ok
    second connect line /lock.sock = ENOENT
    second listen door /lock.sock = ok
    server stat /lock.sock = f2
    second connect line /lock.sock = ok
    server accept line door = none
    second accept line door = ok
    second open file /lock.sock = ENXIO
    second open plain /plain create
    second connect line2 /plain = ECONNREFUSED
    """,
        "a stopped server's door takes connections": """
    world fork server
    server listen door /lock.sock
    outside stop server
    world fork engine
    engine connect line /lock.sock = ok
    engine send line hello = ok
    outside cont server
    server readable door = yes
    server accept line door
    server receive line = hello open
    """,
    }
)
