"""Short descriptions of errors in data files, for any library that reads them."""

import contextlib
import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator

from tff_algos import messages

# Exceptions of zipfile, its compression modules and NumPy's header parser (headers are
# Python literals) for a file that is damaged, encrypted or of another format.
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
    """Data are invalid; code that knows their file converts this to a `TaskError`."""


@contextlib.contextmanager
def reading(what: str = "it") -> Iterator[None]:
    """Converts the exceptions for a damaged file to `Unfit`.

    Args:
      what: Name of the data in the message.

    Raises:
      Unfit: If reading fails in the body.
    """
    try:
        yield
    except _RAISED_FOR_DAMAGE as error:
        raise Unfit(f"{what} cannot be read ({messages.one_line(error)})") from error
