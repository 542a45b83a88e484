"""What a socket takes at once, which is nearly all that is ever sent: it needs no deadline and no turn of the loop."""

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
