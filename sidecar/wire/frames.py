"""Frames over a Unix stream socket: a 4-byte big-endian length, a msgpack body, and descriptors beside it.

What this file is for: one `Channel` per connection turns bytes into messages and messages into bytes, keeps what the
socket doesn't take yet, and owns every descriptor between the kernel and the handler of the message.

Its rules:

* A frame's descriptors leave with the frame's first byte, and the frame says how many they are (`Message.fds`). So
  which frame owns which descriptors never depends on how the kernel cut the stream.
* A large body travels aside, in a memfd that is the frame's first descriptor, when the peer has read everything before:
  a socket buffer holds 200 KiB, and a body of megabytes would go through it in many turns of both loops. At most one
  such body waits unread, so a peer that doesn't read can't make this process's memory grow by asking.
* A received descriptor is close-on-exec from its first moment, and is either handed out with its message or closed
  here.
* A bad frame costs its sender the connection, and the others nothing: `BadFrame` says in a sentence what was wrong.

What it may not do: block, know a clock (a half-sent frame shows as `half_frame`, how long it may take is the caller's
business), or know what the messages mean. Who the peer is: `peers.py`. The messages: each package's own `messages.py`.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

MAX_FRAME_BYTES = 1 << 20
MAX_DESCRIPTORS = 253  # the kernel's SCM_MAX_FD: more in one message is refused
MAX_BACKLOG_BYTES = 4 << 20
MAX_BACKLOG_DESCRIPTORS = 4 * MAX_DESCRIPTORS

_HEADER = struct.Struct(">I")
_ASIDE = 1 << 31  # in the header: the body is in the first descriptor
_ASIDE_BYTES = 64 << 10
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_READ_BYTES = 64 << 10
_READS_PER_CALL = 16  # so that one peer that writes without end can't keep the loop from the others
_CONTROL_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_ENCODER = msgspec.msgpack.Encoder()


class BadFrame(Exception):
    """The peer sent something that is no frame of this protocol. The connection can only be closed."""


class PeerTooSlow(Exception):
    """The peer doesn't read what it is sent. The connection can only be closed."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=False, omit_defaults=True):
    """Base of every message on the wire. Unknown fields are ignored, so that a newer peer may say more."""

    fds: Annotated[int, msgspec.Meta(ge=0, le=MAX_DESCRIPTORS)] = 0
    """How many descriptors travel with this message; `Channel.send` sets it."""


class Received(NamedTuple):
    """One message and the descriptors that came with it; they belong to the receiver, which closes them."""

    message: Message
    descriptors: tuple[int, ...]


class Channel:
    """One connection that never blocks. `receive` when readable, `flush` when `wants_write` and writable."""

    def __init__(
        self,
        sock: socket.socket,
        decoder: msgspec.msgpack.Decoder[Any],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
    ) -> None:
        sock.setblocking(False)
        self.eof = False
        """The peer said its last: end of file or a reset connection, and everything before it has been handed out."""
        self._sock = sock
        self._decode = decoder.decode
        self._max_frame_bytes = max_frame_bytes
        self._max_backlog_bytes = max_backlog_bytes
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()  # received, and not yet handed out with their message
        self._bad: BadFrame | None = None
        self._backlog: deque[tuple[memoryview, list[int]]] = deque()
        self._backlog_bytes = 0
        self._backlog_descriptors = 0
        self._unwritable = False
        self.held_up = False
        """The kernel takes no more descriptors of this user until others have received what was sent: nothing tells
        when, so `flush` has to be tried a little later.
        """

    def fileno(self) -> int:
        """The socket's descriptor, -1 when closed."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Something waits for the socket to become writable."""
        return bool(self._backlog) and not self.held_up

    @property
    def half_frame(self) -> bool:
        """A frame has begun and isn't complete."""
        return bool(self._incoming)

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Sends now what the socket takes and keeps the rest, with duplicates of the descriptors: the caller's own
        can be closed as soon as this returns.

        Raises PeerTooSlow when too much is kept already. To a peer that has closed its end nothing is sent and
        nothing raised: that it is gone comes through `receive`, after the last that it said.
        """
        if message.fds != len(descriptors):
            if len(descriptors) > MAX_DESCRIPTORS:
                raise ValueError(f"{len(descriptors)} descriptors can't go with one message; {MAX_DESCRIPTORS} can")
            message = msgspec.structs.replace(message, fds=len(descriptors))
        body = _ENCODER.encode(message)
        if len(body) > self._max_frame_bytes:
            raise ValueError(
                f"{type(message).__name__} takes {len(body)} bytes; a frame may have {self._max_frame_bytes}"
            )
        if self._unwritable:
            return
        aside = None
        if len(body) > _ASIDE_BYTES and len(descriptors) < MAX_DESCRIPTORS and self._all_is_read():
            aside = _put_aside(body)
        if aside is None:
            self._send_frame(_HEADER.pack(len(body)) + body, descriptors)
            return
        try:
            self._send_frame(_HEADER.pack(len(body) | _ASIDE), (aside, *descriptors))
        finally:
            os.close(aside)

    def _send_frame(self, frame: bytes, descriptors: Sequence[int]) -> None:
        written = 0 if self._backlog else self._write(frame, descriptors)
        if self._unwritable or written == len(frame):
            return
        # The descriptors went with the first byte, if that went at all.
        self._keep(memoryview(frame)[written:], descriptors if written == 0 else ())

    def _all_is_read(self) -> bool:
        """The peer has taken everything that it was sent."""
        if self._backlog:
            return False
        unread = array.array("i", [0])
        fcntl.ioctl(self._sock, termios.TIOCOUTQ, unread)
        return unread[0] == 0

    def flush(self) -> None:
        """Sends what `send` had to keep, as far as the socket takes it now."""
        self.held_up = False
        while self._backlog:
            rest, descriptors = self._backlog[0]
            written = self._write(rest, descriptors)
            if self._unwritable or written == 0:
                return
            self._backlog_bytes -= written
            self._backlog_descriptors -= len(descriptors)
            close_all(descriptors)
            if written == len(rest):
                self._backlog.popleft()
            else:
                self._backlog[0] = (rest[written:], [])

    def _write(self, data: bytes | memoryview, descriptors: Sequence[int]) -> int:
        """How many bytes the socket took. The descriptors went with them if that's more than none."""
        try:
            if descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                return self._sock.sendmsg((data,), (rights,), socket.MSG_NOSIGNAL)
            return self._sock.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            self._stop_writing()
            return 0
        except OSError as error:
            # The kernel counts what one user has sent and what isn't received yet against the sender's RLIMIT_NOFILE,
            # and may have no memory for a message at the moment: neither is a fault of this peer's.
            if error.errno not in (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM):
                raise
            self.held_up = True
            return 0

    def _keep(self, rest: memoryview, descriptors: Sequence[int]) -> None:
        if (
            self._backlog_bytes + len(rest) > self._max_backlog_bytes
            or self._backlog_descriptors + len(descriptors) > MAX_BACKLOG_DESCRIPTORS
        ):
            waiting = f"{self._backlog_bytes} bytes and {self._backlog_descriptors} descriptors"
            self._stop_writing()  # half a frame may be out, so nothing sensible can follow it
            raise PeerTooSlow(f"the peer doesn't read: {waiting} wait for it already, the limit is reached")
        self._backlog.append((rest, _duplicates(descriptors)))
        self._backlog_bytes += len(rest)
        self._backlog_descriptors += len(descriptors)

    def _stop_writing(self) -> None:
        self._unwritable = True
        self._drop_backlog()
        # What the peer sent before can still be read; then this makes the end of file certain, and the loop sees it.
        self._shut(socket.SHUT_RDWR)

    # --- receiving -------------------------------------------------------------------------------------------------

    def receive(self) -> list[Received]:
        """Every message that has come, and `eof` set when no more can come.

        Raises BadFrame. Messages that were complete before the bad frame are returned first and the next call raises;
        the socket then stays readable, so that a loop that polls makes this next call.
        """
        received: list[Received] = []
        if self._bad is not None:
            raise self._bad
        try:
            for _ in range(_READS_PER_CALL):
                if self.eof or not self._receive_once(received):
                    break
        except BadFrame as error:
            self._bad = error
            self._drop_incoming()
            self._shut(socket.SHUT_RD)
            if not received:
                raise
        except BaseException:
            for _, descriptors in received:
                close_all(descriptors)
            raise
        return received

    def _receive_once(self, received: list[Received]) -> bool:
        """One read. False when the socket is empty, for now or for good."""
        try:
            data, control, flags, _ = self._sock.recvmsg(_READ_BYTES, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            self.eof = True
            return False
        truncated = False
        if control:
            truncated = self._take_descriptors(control, flags)
        elif flags & socket.MSG_CTRUNC:
            truncated = True
        if not data:
            self.eof = True
            return False
        if self._incoming:
            self._incoming += data
            self._parse_incoming(received, truncated)
        else:
            rest = self._parse(data, received, truncated)
            if rest < len(data):
                self._incoming += data[rest:]
        if truncated:
            raise BadFrame(_TRUNCATED)
        if self._descriptors:
            self._check_descriptors()
        return True

    def _take_descriptors(self, control: list[tuple[int, int, bytes]], flags: int) -> bool:
        """Takes what came into our care. True, and everything of this read closed, when the kernel had to drop some."""
        came: list[int] = []
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                came.extend(fds)
        if flags & socket.MSG_CTRUNC:
            close_all(came)
            return True
        self._descriptors.extend(came)
        return False

    def _parse_incoming(self, received: list[Received], truncated: bool) -> None:
        whole = self._incoming
        if len(whole) >= _HEADER.size:
            length, aside = self._frame_length(whole, 0)
            if len(whole) < _HEADER.size + (0 if aside else length):
                return  # the usual case of a slow sender: nothing is copied, nothing is looked at twice
        self._incoming = bytearray()
        rest = self._parse(bytes(whole), received, truncated)
        if rest < len(whole):
            del whole[:rest]
            self._incoming = whole

    def _parse(self, data: bytes, received: list[Received], truncated: bool) -> int:
        """Turns every complete frame in data into a message; returns where the first incomplete one begins."""
        start, end = 0, len(data)
        while end - start >= _HEADER.size:
            begin = start + _HEADER.size
            length, aside = self._frame_length(data, start)
            after = begin if aside else begin + length
            if after > end:
                break
            body = self._read_aside(length, truncated) if aside else data[begin:after]
            try:
                message = self._decode(body)
            except (ValueError, RecursionError) as error:  # msgspec's own, bad UTF-8, nesting without end
                raise BadFrame(f"a frame of {length} bytes is no message of this protocol: {error}") from error
            received.append(Received(message, self._descriptors_of(message, truncated) if message.fds else ()))
            start = after
        return start

    def _frame_length(self, data: bytes | bytearray, start: int) -> tuple[int, bool]:
        """And whether the body is aside."""
        header: int = _HEADER.unpack_from(data, start)[0]
        length = header & ~_ASIDE
        if length > self._max_frame_bytes:
            raise BadFrame(f"a frame says that it has {length} bytes; at most {self._max_frame_bytes} are allowed")
        return length, header != length

    def _read_aside(self, length: int, truncated: bool) -> bytes:
        if not self._descriptors:
            raise BadFrame(
                _TRUNCATED if truncated else "a frame says that its body is aside; no descriptor came with it"
            )
        aside = self._descriptors.popleft()
        try:
            # Only memory has seals: reading it never waits.
            if fcntl.fcntl(aside, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise BadFrame("the body of a frame came in a file that can still change")
            body = os.pread(aside, length, 0)
        except OSError as error:
            raise BadFrame(f"the body of a frame can't be read: {error.strerror}") from None
        finally:
            os.close(aside)
        if len(body) != length:
            raise BadFrame(f"a frame says that it has {length} bytes; {len(body)} came with it")
        return body

    def _descriptors_of(self, message: Message, truncated: bool) -> tuple[int, ...]:
        here = self._descriptors
        if message.fds > len(here):
            if truncated:
                raise BadFrame(_TRUNCATED)
            raise BadFrame(f"{type(message).__name__} says {message.fds} descriptors; {len(here)} came with it")
        return tuple(here.popleft() for _ in range(message.fds))

    def _check_descriptors(self) -> None:
        """Descriptors that are left can only belong to one frame that has begun."""
        if not self._incoming:
            raise BadFrame(f"{len(self._descriptors)} descriptors came with a message that says there are none")
        if len(self._descriptors) > MAX_DESCRIPTORS:
            raise BadFrame(f"{len(self._descriptors)} descriptors came with a frame that isn't complete")

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the connection and every descriptor that is still in its care. May be called again."""
        self._unwritable = True
        self.eof = True
        self._drop_incoming()
        self._drop_backlog()
        self._sock.close()

    def _drop_incoming(self) -> None:
        self._incoming = bytearray()
        close_all(self._descriptors)

    def _drop_backlog(self) -> None:
        for _, descriptors in self._backlog:
            close_all(descriptors)
        self._backlog.clear()
        self._backlog_bytes = self._backlog_descriptors = 0

    def _shut(self, how: int) -> None:
        try:
            self._sock.shutdown(how)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise


_TRUNCATED = (
    "a frame's descriptors could not all be received and were closed: "
    "this process has nearly as many files open as RLIMIT_NOFILE allows"
)


def close_all(descriptors: Iterable[int]) -> None:
    """Closes each of them. A list or deque is emptied, and each is taken out before it is closed: what a signal handler
    raises here may lose one, but none is closed again, when its number may be another file's.
    """
    left = descriptors if isinstance(descriptors, list | deque) else list(descriptors)
    while left:
        os.close(left.pop())


def _put_aside(body: bytes) -> int | None:
    """A memfd with it that no process can change any more; None where there is no descriptor or no memory for one."""
    try:
        fd = os.memfd_create("frame", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        return None
    return fd


def _duplicates(descriptors: Sequence[int]) -> list[int]:
    """Duplicates of all of them, or OSError and of none."""
    made: list[int] = []
    try:
        for fd in descriptors:
            made.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0))
    except OSError:
        close_all(made)
        raise
    return made
