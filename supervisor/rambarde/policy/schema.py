"""The JSON Schema of the policy files, for editors. Trusted side. Pure."""

from __future__ import annotations

from pydantic.json_schema import models_json_schema

from rambarde.policy.catastrophic import CatastrophicShape
from rambarde.policy.limits import LimitsShape
from rambarde.policy.load import PatternsShape, SandboxShape


def policy_schema() -> dict[str, object]:
    """Return one schema with a definition for each kind of file; policies/schema.json is it."""
    shapes = (SandboxShape, LimitsShape, PatternsShape, CatastrophicShape)
    _, schema = models_json_schema([(shape, "validation") for shape in shapes])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rambarde policy files",
        "anyOf": [{"$ref": f"#/$defs/{shape.__name__}"} for shape in shapes],
        "$defs": schema["$defs"],
    }
