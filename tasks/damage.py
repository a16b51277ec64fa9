"""What is wrong with files of data, in a few words, whichever library finds it."""

import contextlib
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator

from tff_algos import messages

# What zipfile, its compressions and NumPy's parser of headers, which are written as
# Python, raise for a file that is damaged, encrypted or none of theirs.
_RAISED_FOR_DAMAGE = (
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


class Unfit(Exception):
    """What is wrong with data; whoever knows their file raises a `TaskError` of it."""


@contextlib.contextmanager
def reading(what: str = "it") -> Iterator[None]:
    """Turns what is raised for a damaged file into `Unfit`.

    Args:
      what: What is read, for the message.

    Raises:
      Unfit: If the body raises any error of reading.
    """
    try:
        yield
    except _RAISED_FOR_DAMAGE as error:
        raise Unfit(f"{what} cannot be read ({messages.one_line(error)})") from error
