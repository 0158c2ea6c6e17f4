"""The name of the model when nobody gave one: the only one the engine has. Trusted side."""

from __future__ import annotations

from rambarde.models.failure import ProviderError, plain_words
from rambarde.models.http import HttpClient
from rambarde.models.shapes import as_list, as_map, as_text

LISTED = 8
"""Most names shown to the person."""
LOOK_UP_S = 10.0


async def only_model(http: HttpClient, path: str = "/models") -> str:
    """Return the name of the engine's only model.

    Raises:
        ProviderError: there are several or none (the advice names some), or no way to the engine.
    """
    listing = await http.look_up(http.endpoint.url + path, timeout_s=LOOK_UP_S)
    names = [as_text(as_map(entry).get("id")) for entry in as_list(listing.get("data"))]
    names = [name for name in names if name]
    if len(names) == 1:
        return names[0]
    shown = plain_words(", ".join(names[:LISTED])) + (", …" if len(names) > LISTED else "")
    raise ProviderError(
        f"{http.endpoint.name} has {len(names) or 'no listed'} models and none was chosen",
        kind="invalid",
        advice="name one with --model" + (f": {shown}" if names else ""),
    )
