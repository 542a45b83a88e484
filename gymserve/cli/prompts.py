"""The text that tells a model its task: from a file, or GridSim's own."""

from pathlib import Path

from gymserve.cli.refusals import Refused, printable
from gymserve.gridsim.day import HOURS
from gymserve.gridsim.manual import TASK

GRIDSIM_PROMPT = f"""\
{TASK}

Your tools:
- forecast(hours): what the present hour and those after it bring: demand, sun, wind and the market's prices. Exact.
- status(): the present hour, what battery and generator may do in it, and what the day has cost so far.
- dispatch(battery_mw, generator_mw): decides the present hour and goes on to the next.

How a day goes:
- Dispatch once for each hour, {HOURS} times in all: hours_left in the answer says how many are left.
- Think ahead: store energy while it is cheap for the hours in which it is dear, and mind the generator's ramp.
- An answer with an error has taken no time: read the bounds in it, and dispatch the same hour again.
- The score comes with the last dispatch only: do not stop before hours_left is 0. Then say in a sentence what you did.\
"""


def read_prompt(path: str, where: str) -> str:
    """The text in a file, without white space around it; ``where`` tells what names the file.

    :raises Refused: it cannot be read, is not UTF-8, or is empty.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise Refused(f"{where}: {printable(path)} cannot be read: {error.strerror}") from None
    except ValueError:  # UnicodeDecodeError, or a null byte in the name
        raise Refused(f"{where}: {printable(path)} cannot be read: it is not UTF-8 text") from None
    if not text:
        raise Refused(f"{where}: {printable(path)} is empty")
    return text
