"""Notices by URL: the metadata services of clouds. Apart, as few jobs need what it imports."""

from __future__ import annotations

import http.client
import logging
import urllib.error
import urllib.request

__all__ = ["answered"]

_log = logging.getLogger("horovod")

_ANSWER_S = 2.0
_MOST_BYTES = 1 << 12
_NOTHING = ("", "false", "none", "null")
"""Answers of clouds, with status 200, where there is no notice."""

# Each is demanded by one cloud's metadata service, and ignored by the others.
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_TOKEN_PATH = "/latest/api/token"


def answered(url: str) -> str:
    """The notice that `url` gives now; empty: none, or it cannot be asked.

    It gives one by an answer with status 200 that says more than "false", "none" or "null": so do the
    metadata services of Amazon (also with a token), Google and Azure.
    """
    try:
        try:
            text = _get(url, _HEADERS)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                return ""
            text = _get(url, {"X-aws-ec2-metadata-token": _token(url)})
    except (OSError, ValueError, http.client.HTTPException) as error:
        _log.debug("no notice from %s: %s", url, error)
        return ""
    return "" if text.strip().lower() in _NOTHING else f"{url} says {text.strip()[:200]!r}"


def _get(url: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)
    # No proxy: the services are of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ANSWER_S) as answer:
        text: bytes = answer.read(_MOST_BYTES)
    return text.decode(errors="replace")


def _token(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    return _get(f"{scheme}://{host}{_TOKEN_PATH}", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
