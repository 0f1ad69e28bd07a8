"""The house's HTTP client, against servers that say what a test wants."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sidecar.http.http_client import HttpClient, Unanswered

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def _with(talk: Talk, what: Callable[[str, HttpClient], Awaitable[None]], body_bytes: int = 1 << 20) -> None:
    async def run() -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await talk(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        client = HttpClient(body_bytes=body_bytes)
        await what(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", client)
        client.close()
        server.close()

    asyncio.run(run())


def _answering(*answers: bytes) -> Talk:
    """To each request of a connection the next of these."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        await reader.read()

    return talk


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 200, b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
    ],
)
def test_an_answer_is_read_however_its_length_is_said(answer: bytes, status: int, body: bytes) -> None:
    async def ask(url: str, client: HttpClient) -> None:
        found = await client.ask("GET", url + "/x?y=1", timeout_s=30)
        assert (found.status, found.body) == (status, body)

    _with(_answering(answer), ask)


def test_a_connection_that_its_far_end_has_closed_goes_though_its_place_is_asked_no_more() -> None:
    """Of pods that come and go each would leave one, until no descriptor is left."""
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"first" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(OK)
            writer.write_eof()
            await reader.read()
            gone.set()
        else:
            writer.write(OK)
            await _answering(*[OK] * 100_000)(reader, writer)

    async def ask(url: str, client: HttpClient) -> None:
        await client.ask("GET", url + "/first", timeout_s=30)
        async with asyncio.timeout(30):
            while not gone.is_set():
                await client.ask("GET", url.replace("127.0.0.1", "127.1") + "/another", timeout_s=30)

    _with(talk, ask)


def test_a_connection_is_used_again_and_one_that_was_closed_is_not() -> None:
    connections = [0]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[0] += 1
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await writer.drain()

    async def ask(url: str, client: HttpClient) -> None:
        for _ in range(4):
            assert (await client.ask("GET", url, timeout_s=30)).body == b"ok"
            await asyncio.sleep(0.05)  # the server's end of the connection arrives

    _with(talk, ask)
    assert connections == [2]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", "closed the connection"),
        (b"what?\r\n\r\n", "what it answers is no HTTP: Expected HTTP/"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 100, "more than 50 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(300)), "is no HTTP: too many headers"),
        (b"HTTP/1.1 200 OK\r\nh: " + b"x" * 100, "more than 50 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10, "more than 50 bytes"),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", "it answers 101, and"),
    ],
)
def test_no_answer_or_none_that_is_one_is_a_sentence(answer: bytes, says: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async def ask(url: str, client: HttpClient) -> None:
        with pytest.raises(Unanswered, match=says):
            await client.ask("GET", url, timeout_s=30)

    _with(talk, ask, body_bytes=50)


def test_a_server_that_is_silent_is_waited_for_so_long() -> None:
    async def ask(url: str, client: HttpClient) -> None:
        with pytest.raises(Unanswered, match=r"no answer within 0\.05 s"):
            await client.ask("GET", url, timeout_s=0.05)
        with pytest.raises(Unanswered, match=r"no answer within 0\.05 s"):
            async with client.stream(url, timeout_s=0.05):
                pass

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    _with(silent, ask)


def test_where_nothing_listens_is_said() -> None:
    with pytest.raises(Unanswered, match=r"127\.0\.0\.1:1"):
        asyncio.run(HttpClient().ask("GET", "http://127.0.0.1:1/", timeout_s=30))


@pytest.mark.parametrize("target", ["8000health", "/\ud800"])
def test_what_is_no_address_is_a_sentence(target: str) -> None:
    with pytest.raises(Unanswered):
        asyncio.run(HttpClient().ask("GET", f"http://127.0.0.1:1{target}", timeout_s=30))


def test_a_path_of_any_letters_is_asked_as_browsers_do() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n")).split()[1]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(line), line))

    async def ask(url: str, client: HttpClient) -> None:
        answer = await client.ask("GET", url + "/grün 1/%20?of=[ü]&x", timeout_s=30)
        assert answer.body == b"/gr%C3%BCn%201/%20?of=[%C3%BC]&x"

    _with(talk, ask)


def test_a_key_of_any_letters_is_sent_as_its_file_has_it() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(OK if "Bearer grün✓".encode() in head else b"HTTP/1.1 401 no\r\ncontent-length: 0\r\n\r\n")

    async def ask(url: str, client: HttpClient) -> None:
        headers = {"authorization": "Bearer grün✓"}
        assert (await client.ask("GET", url, headers=headers, timeout_s=30)).status == 200

    _with(talk, ask)


def test_lines_come_as_they_are_sent_and_an_end_that_is_none_is_told() -> None:
    begin = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\na\nb\nc\r\n"

    async def follow(url: str, client: HttpClient, whole: bool) -> None:
        found = []
        async with client.stream(url, timeout_s=30) as (status, lines):
            assert status == 200
            if whole:
                async for line in lines:
                    found.append(line)
            else:
                with pytest.raises(Unanswered, match="closed the connection"):
                    async for line in lines:
                        found.append(line)
        assert found == ([b"a", b"b", b"c"] if whole else [b"a", b"b"])

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin)

    _with(_answering(begin + b"0\r\n\r\n"), lambda url, client: follow(url, client, True))
    _with(cut, lambda url, client: follow(url, client, False))


def test_a_line_without_an_end_is_bounded() -> None:
    async def follow(url: str, client: HttpClient) -> None:
        async with client.stream(url, timeout_s=30, line_bytes=10) as (_, lines):
            with pytest.raises(Unanswered, match="more than 10 bytes"):
                async for _ in lines:
                    pass

    _with(_answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 50), follow)
