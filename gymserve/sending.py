"""What a socket does without Trio's ways round it: it takes at once nearly all that is ever sent, and what is waited
for is hardly ever there already.
"""

import os

import trio


def send_at_once(stream: trio.abc.SendStream, data: bytes | bytearray | memoryview) -> int:
    """How many bytes of ``data`` were sent without waiting; 0 where ``stream`` has to be asked for it: by its own
    `send_all`, which also tells what is wrong with it. Nobody else may be sending.
    """
    if os.name != "posix" or not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)  # Trio's sockets never block
    except OSError:
        return 0


async def receive_later(stream: trio.abc.ReceiveStream, max_bytes: int) -> bytes | bytearray:
    """As ``stream.receive_some``, where it is likely that nothing is there yet: a socket is not asked before it says
    so, which saves a call of the system in vain and an exception each time.
    """
    if os.name != "posix" or not isinstance(stream, trio.SocketStream):
        return await stream.receive_some(max_bytes)
    while True:
        number = stream.socket.fileno()
        if number < 0:
            raise trio.ClosedResourceError
        await trio.lowlevel.wait_readable(number)
        try:
            return os.read(number, max_bytes)
        except BlockingIOError:
            pass  # another's bytes, or a checksum: select(2), BUGS
        except OSError as exc:
            raise trio.BrokenResourceError(f"socket connection broken: {exc}") from exc


async def close_at_once(stream: trio.abc.AsyncResource) -> None:
    """As `trio.aclose_forcefully`, whose scope, cancellation and turn of the loop a socket does not need."""
    if isinstance(stream, trio.SocketStream):
        stream.socket.close()
    else:
        await trio.aclose_forcefully(stream)
