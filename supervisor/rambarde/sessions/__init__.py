"""The record of sessions: journals, their store and index, transcripts, reports. Trusted side."""
