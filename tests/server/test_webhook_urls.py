"""Which URLs are webhooks, and which hosts they may reach."""

from __future__ import annotations

import pytest

from headrace.errors import UserError
from headrace.sql import webhook_urls


@pytest.mark.parametrize(
    ("url", "hosts", "allowed"),
    [
        ("https://hooks.example.com/a?b=1", "hooks.example.com", True),
        ("https://HOOKS.example.com/", " other.com , Hooks.Example.com", True),
        ("https://hooks.example.com:443/", "hooks.example.com", True),
        ("http://hooks.example.com/", "hooks.example.com", True),
        ("https://hooks.example.com:8443/", "hooks.example.com", False),
        ("https://hooks.example.com:80/", "hooks.example.com", False),
        ("https://hooks.example.com:8443/", "hooks.example.com:8443", True),
        ("https://hooks.example.com/", "hooks.example.com:8443", False),
        ("http://127.0.0.1:9/", "127.0.0.1:*", True),
        ("https://a.example.com/", "*.example.com", True),
        ("https://example.com/", "*.example.com", False),
        ("https://badexample.com/", "*.example.com", False),
        ("https://example.com.evil.org/", "example.com", False),
        ("http://[::1]:8080/", "[::1]:8080", True),
        ("http://[::1]/", "::1", True),
        ("http://169.254.169.254/latest", "hooks.example.com", False),
        ("http://2130706433/", "127.0.0.1", False),
        ("https://hooks.example.com/", "", False),
    ],
)
def test_only_named_hosts_are_allowed(url, hosts, allowed):
    assert webhook_urls.is_allowed(webhook_urls.parse(url), hosts) is allowed


@pytest.mark.parametrize(
    "url",
    [
        *("", "hooks.example.com", "ftp://hooks.example.com/", "file:///etc/passwd", "https:///x"),
        *(
            "https://u:p@h/",
            "https://h@evil/",
            "https://h/#x",
            "https://h:port/",
            "https://h:99999/",
        ),
        *("https://h/a b", "https://h/\r\nX: y", "https://h/\u00e4", "https://h/" + "x" * 2000),
    ],
)
def test_other_texts_are_refused(url):
    with pytest.raises(UserError) as caught:
        webhook_urls.parse(url)
    assert caught.value.code == "22023"


def test_the_refusal_names_the_setting():
    url = webhook_urls.parse("https://hooks.example.com:8443/secret/path")
    with pytest.raises(UserError) as caught:
        webhook_urls.check_allowed(url, "")
    error = caught.value
    told = f"{error.message} {error.detail} {error.hint}"
    assert ("webhook_hosts" in told, "secret" in told) == (True, False)
    assert "hooks.example.com:8443" in str(error.hint)
