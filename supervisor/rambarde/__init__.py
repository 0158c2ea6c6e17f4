"""Agents and subagents as sandboxed processes under one supervisor. Nothing runs on import."""

__version__ = "0.1.0"
