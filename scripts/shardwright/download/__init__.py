"""The download stage; `worker` and what it imports also run under Python 3.10 (historic environment)."""
