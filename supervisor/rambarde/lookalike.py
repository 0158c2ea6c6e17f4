"""Compare names by how they look, so that none passes for another. Trusted side. Pure.

Two names look alike when they differ only in letter case, separators, width, marks above letters,
invisible characters, or letters of other scripts and digits that are drawn like Latin ones.

Source: Unicode Technical Standard 39 (confusables), the part that maps onto `a` to `z`.
"""

from __future__ import annotations

import unicodedata

_DRAWN_LIKE = {
    # Cyrillic
    "а": "a", "в": "b", "с": "c", "ԁ": "d", "е": "e", "ё": "e", "һ": "h", "і": "i", "ї": "i",
    "ј": "j", "к": "k", "ӏ": "l", "м": "m", "н": "h", "о": "o", "р": "p", "ԛ": "q", "г": "r",
    "ѕ": "s", "т": "t", "ѵ": "v", "ԝ": "w", "х": "x", "у": "y", "ү": "y", "ҫ": "c", "є": "e",
    "п": "n", "ʟ": "l",
    # Greek
    "α": "a", "β": "b", "ς": "c", "ϲ": "c", "ε": "e", "γ": "y", "η": "n", "ι": "i", "κ": "k",
    "ν": "v", "ο": "o", "ρ": "p", "σ": "o", "τ": "t", "υ": "u", "χ": "x", "ζ": "z", "ϳ": "j",
    "μ": "u", "λ": "l", "π": "n",
    # Latin letters beyond a to z, and digits
    "ı": "i", "ɩ": "i", "ɪ": "i", "ǀ": "l", "ł": "l", "ɑ": "a", "ɡ": "g", "ɢ": "g", "ɴ": "n",
    "ʀ": "r", "ᴀ": "a", "ᴇ": "e", "ᴏ": "o", "ᴘ": "p", "ø": "o", "đ": "d", "ħ": "h", "ŧ": "t",
    "æ": "ae", "œ": "oe", "ß": "ss", "ẟ": "d", "ꜱ": "s", "ᴄ": "c", "ᴠ": "v", "ᴡ": "w", "ᴢ": "z",
    "0": "o", "1": "l", "3": "e", "4": "a", "5": "s", "|": "l", "!": "l", "$": "s", "@": "a",
}  # fmt: skip


def looks_of(name: str) -> str:
    """Return what a name looks like; equal results mean that the names may be taken for another.

    `i`, `l` and `1` are one: in capitals and many faces they are drawn the same.
    """
    wide = unicodedata.normalize("NFKC", name).casefold()
    plain = unicodedata.normalize("NFKD", wide)
    drawn = "".join(_DRAWN_LIKE.get(char, char) for char in plain)
    return "".join(char for char in drawn if char.isalnum()).replace("i", "l")
