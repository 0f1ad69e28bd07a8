"""Scripts about paths that come to lead elsewhere, names without a path, and programs that are executed. Grammar:
scripts.py."""

from tests.sim.scripts import scripts_of

SCRIPTS = scripts_of(
    {
        "who holds a directory open has that very one, whatever becomes of its path": """
    outside mkdir /above/run
    world fork holder
    holder directory d /above/run
    holder open_at life d life create
    holder lock life read 0 1
    world fork mover
    mover rename /above /elsewhere
    holder stat /above/run = ENOENT
    outside mkdir /above/run
    holder fstat d = f1
    holder stat /above/run = f2
    holder stat /elsewhere/run = f1
    holder stat_at d life = f3
    holder stat /above/run/life = ENOENT
    holder open_at again d life
    holder probe again write 0 1 = held
    """,
        "a symlink that is switched leads newcomers elsewhere, and no other process": """
    outside mkdir /one
    outside mkdir /two
    outside symlink /one /link
    world fork server
    server listen door /link/lock.sock
    server directory d /link
    world fork engine
    engine connect line /link/lock.sock = ok
    engine unlink /link
    outside symlink /two /link
    engine connect other /link/lock.sock = ENOENT
    server connect_at held d lock.sock = ok
    server real_path /link = /two
    server accept first door = ok
    server fstat d = f1
    server stat /one = f1
    """,
        "a circle of symlinks leads nowhere": """
    outside mkdir /run
    world fork engine
    engine directory d /run
    engine rename /run /old
    outside symlink /run /run
    engine stat /run/lock.sock = ELOOP
    engine directory again /run = ELOOP
    engine connect line /run/lock.sock = ELOOP
    engine open_at life d life create = ok
    """,
        "a directory on the way that may not be entered": """
    outside mkdir /above/run
    world fork engine
    engine obey_modes
    engine directory d /above/run
    engine open_at life d life create
    outside close /above
    engine stat /above/run = EACCES
    engine directory again /above/run = EACCES
    engine open new /above/run/new create = EACCES
    engine stat_at d life = f1
    outside reopen /above
    engine stat /above/run/life = f1
    """,
        "in a directory that was removed nothing can be made": """
    outside mkdir /run
    world fork engine
    engine directory d /run
    outside replace /run
    engine open_at life d life create = ENOENT
    engine stat_at d life = ENOENT
    engine open life /run/life create = ok
    """,
        "an abstract name is in use until its last copy is closed": """
    world fork server
    server listen_abstract name pair
    world fork next
    next listen_abstract name pair = EADDRINUSE
    next connect_abstract line pair = ok
    world fork engine
    server fork child
    outside kill server
    next listen_abstract name pair = EADDRINUSE
    outside stop child
    next listen_abstract name pair = EADDRINUSE
    outside kill child
    next listen_abstract name pair = ok
    """,
        "an abstract name goes with a copy that was sent": """
    world fork server
    server listen door /lock.sock
    server listen_abstract name pair
    world fork engine
    engine connect line /lock.sock
    server accept line door
    server send line granted name
    outside kill server
    world fork next
    next listen_abstract name pair = EADDRINUSE
    engine receive line name = granted+1 end
    next listen_abstract name pair = EADDRINUSE
    engine close name
    next listen_abstract name pair = ok
    """,
        "who executes another program lets go of all that it doesn't hand down": """
    outside mkdir /life
    world fork engine
    engine open life /life/engine.1 create
    engine lock life read 0 1
    engine map m life
    engine listen_abstract name pair
    world fork server
    server open probe /life/engine.1
    server pidfd engine engine
    server inode engine = p1
    server probe probe write 0 1 = held
    engine execute
    server probe probe write 0 1 = free
    server listen_abstract name pair = ok
    server dead engine = alive
    server inode engine = p1
    """,
        "a mapping keeps the lock when every descriptor is closed": """
    outside mkdir /life
    world fork engine
    engine open life /life/engine.1 create
    engine lock life read 0 1
    engine map m life
    engine close life
    world fork server
    server open probe /life/engine.1
    server probe probe write 0 1 = held
    engine unmap m
    server probe probe write 0 1 = free
    """,
        "two files change names in one step": """
    outside mkdir /run
    world fork server
    server open a /run/a create
    server open b /run/b create
    server stat /run/a = f1
    server exchange /run/a /run/b = ok
    server stat /run/b = f1
    server stat /run/a = f2
    server exchange /run/a /run/none = ENOENT
    """,
    }
) + scripts_of(
    {
        "what is mounted over a directory hides it from newcomers": """
    outside mkdir /run
    world fork engine
    engine directory d /run
    engine open_at life d life create
    engine stat /run = f1
    outside mount /run
    engine stat /run = f2
    engine stat /run/life = ENOENT
    engine fstat d = f1
    engine stat_at d life = f3
    outside unmount /run
    engine stat /run = f1
    """,
    },
    needs_root=True,
)
