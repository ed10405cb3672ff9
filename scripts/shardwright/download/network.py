"""Is there a way to the web from here? Asked before a shard's URLs are, so that an outage costs seconds.

Without it a node without a resolver, or behind a dead proxy, works for an hour through ten thousand
URLs to find that each of them failed. Standard library only.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence

from shardwright.download.deadline import Deadline
from shardwright.download.fetch import Fetcher, split_url
from shardwright.download.fetch_error import FetchError
from shardwright.errors import BuildError
from shardwright.failure_advice import ADVICE

_MAX_HOSTS = 32
_LOOK_AT = 512


def sample_hosts(urls: Sequence[str]) -> list[str]:
    """Return one URL for each of up to 32 hosts, from all over the shard."""
    by_host: dict[tuple, str] = {}
    for url in urls[:: -(-len(urls) // _LOOK_AT) or 1]:
        try:
            target = split_url(url)
        except FetchError:
            continue
        by_host.setdefault((target.scheme, target.netloc), url)
    hosts = list(by_host.values())
    return hosts[:: -(-len(hosts) // _MAX_HOSTS) or 1]


def _ask(fetcher: Fetcher, url: str, deadline: Deadline, answers: queue.SimpleQueue) -> None:
    failure: FetchError | None = FetchError("other", "no attempt")
    try:
        fetcher.reach(url, deadline)
        failure = None
    except FetchError as error:
        failure = error
    finally:
        answers.put(failure)  # whatever happens, or the asker waits for ever


def check_network(fetcher: Fetcher, urls: Sequence[str]) -> None:
    """Connect to hosts of the shard, all at a time, until one is reached; send them nothing.

    Args:
        fetcher: With the settings, and so the proxy, that the shard is fetched with.
        urls: The shard's URLs.

    Raises:
        BuildError: None of up to 32 hosts can be reached.
    """
    hosts = sample_hosts(urls)
    deadline, answers = Deadline(fetcher.fetching.url_deadline_s), queue.SimpleQueue()
    for url in hosts:
        threading.Thread(target=_ask, args=(fetcher, url, deadline, answers), daemon=True).start()
    failures = []
    for _ in hosts:
        failure = answers.get()
        if failure is None:
            return
        failures.append(failure)
    if failures:
        raise _no_way_out(failures)


def _no_way_out(failures: Sequence[FetchError]) -> BuildError:
    kinds = Counter(failure.kind for failure in failures).most_common()
    messages = Counter(str(failure) for failure in failures)
    return BuildError(
        "the network of this node",
        found=f"none of {len(failures)} hosts reached ({', '.join(f'{n} {kind}' for kind, n in kinds)}; "
        f"most often {messages.most_common(1)[0][0]})",
        expected="a connection to one at least; no URL of the shard was asked for",
        next_step=f"{ADVICE.get(kinds[0][0], 'look at the network')}; then run the same command again",
    )
