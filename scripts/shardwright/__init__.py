"""Shared code of the Shardwright programs; imports nothing heavy."""
