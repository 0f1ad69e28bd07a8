"""Which processes are provably gone, and of which nothing proves it: the evidence that a server decides by. It knows
nothing of what is decided.

A *tree* of processes is known by its incarnation: one start of one engine, or of any other program, with all its
processes and one life file. A server *binds* an incarnation when it grants it something; from then on its end has to
be proven. The lock server binds the one that has the lock, and the one that has the permit.

The rules; in brackets the number that a rule had among those of the lock (`lockserver/rules/machine.py`):

 E1. An end is proven when every member's pidfd is readable *and* no process holds the life lock. An end of file alone
     proves nothing; the same process may come back while it isn't proven dead. [1] (`proof.py`)
 E2. No process joins an incarnation that is condemned. One whose main process lost its connection takes no children
     until that is back, nor one whose main process hasn't come to this server, but for those that an earlier server let
     in: that main process may be dead, and another incarnation have what was its own. But a process that tries while
     the life lock is held has shown that it lives (a server before this one may have let it in): it is killed and
     waited for with the others. The main process of another incarnation that is here joins none, and isn't killed for
     trying. [2] (`joining.py`)
 E3. A process joins before it touches a device, or its main process vouches for it. It is known by the inode of its
     pidfd; where there is none, by its number while that can't be another's, or by a secret. (`incarnation.py`)
 E4. The life lock is looked at once it can be free: after the last member's end, or at once where members are only
     known from a file. A look takes nothing. One that outlives all members that are known, of an incarnation that is
     older than this server, means that there was one more, which may be dying. (`incarnations.py`)
 E5. What outlives its main process is killed, once; what can't be killed is named. (`incarnations.py`)
 E6. The life file of a bound incarnation is unlinked only after its end is on disk, so that no process joins it across
     a restart. [6] (`incarnations.py`)
 E7. What isn't bound is forgotten once its client is closed, though its main process lives on: no connection, no other
     process, and a free life lock, which a client that comes back keeps. Nothing is killed for it. [13] A main process
     that has come as another incarnation has ended as this one: it executed a program. (`incarnations.py`)
 E8. After a restart a process that the file names is proven gone by its number, where that means anything, or by a
     copy of its pidfd that a client kept. Without either it counts as gone when three things are so: its life lock is
     free, it can't let go of that lock while it lives, and the memory is free. [7] (`proof.py`, `pidfd_copies.py`)
 E9. Where no file tells which were bound, life locks tell which live: a stranger's counts until it is
     free, and for a settling time more. [7] (`strangers.py`)
E10. What lives and can't be talked with (another version) counts as living until its pidfd says otherwise. [10]
E11. An event costs a look at what it concerns, however many incarnations there are. (`looks.py`)

For a server: `rules/evidence.py`, and `rules/admission.py`: which callers come in, where only what a claim is worth is
the server's own. Its machine derives from `rules/tree_machine.py`. What it says and asks: `rules/events.py`; over a
socket: `rules/messages.py`; in a file: `rules/record.py`. The shell that a server derives from is `shell/shell.py`,
with callers and pidfds, and where it keeps a record `shell/record_shell.py`; `shell/lifefiles.py`: which life files
there are.

For a process of a tree, towards any such server: `rules/standing.py`, whose rules have a C, with the words in
`rules/client_events.py`; its shell is `shell/session.py`: the life lock, the way to the server, the copies kept.
"""
