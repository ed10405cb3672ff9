"""Fetch the pinned model files (draft: A1 owns this file)."""
