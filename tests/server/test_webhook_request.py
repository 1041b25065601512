"""One request to a webhook: its limits, and the answers that accept it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from headrace.server import webhook_request
from headrace.server.webhook_request import DeliveryError
from headrace.server.webhooks import backoff_s
from headrace.sql import webhook_urls
from tests.receivers import Received, Receiver

TIMEOUT_S = 30.0


def post(url: str, body: bytes = b"{}", timeout_s: float = TIMEOUT_S, **headers: str) -> None:
    asyncio.run(webhook_request.post(webhook_urls.parse(url), headers, body, timeout_s))


def test_an_accepted_request():
    with Receiver() as receiver:
        post(receiver.url, b'{"a": 1}', X="y")
    [one] = receiver.received
    assert (one.path, one.body, one.headers["x"]) == ("/hook?token=t0ps3cret", b'{"a": 1}', "y")
    assert one.headers["host"] == receiver.url.split("/")[2]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 410, 429, 500, 503])
def test_other_answers_are_failures(status):
    with Receiver() as other, Receiver(lambda _: status) as receiver:
        receiver.location = other.url
        with pytest.raises(DeliveryError, match=str(status)) as caught:
            post(receiver.url)
    assert other.received == [], "redirects are not followed"
    assert "t0ps3cret" not in str(caught.value)


def test_a_receiver_that_hangs_costs_the_timeout():
    with (
        Receiver(lambda _: 0) as receiver,
        pytest.raises(DeliveryError, match=r"did not answer within 0\.2 s"),
    ):
        post(receiver.url, timeout_s=0.2)


def answering(handle: Callable[[socket.socket], None]) -> str:
    """Accept one connection with ``handle``; return its URL."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as one:
            one.recv(65536)
            handle(one)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{server.getsockname()[1]}/"


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 \r\n"],
)
def test_answers_that_are_not_http(answer):
    with pytest.raises(DeliveryError):
        post(answering(lambda one: one.sendall(answer)))


def test_an_answer_without_end_is_not_read():
    def endless(one: socket.socket) -> None:
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                one.sendall(b"x" * 65536)
        except OSError:
            pass

    post(answering(endless))


def test_one_byte_after_another_is_too_slow():
    stopped = threading.Event()

    def drips(one: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n\r\n" * 10:
            if stopped.wait(0.05):
                return
            one.sendall(bytes([byte]))

    with pytest.raises(DeliveryError, match="did not answer"):
        post(answering(drips), timeout_s=0.3)
    stopped.set()


def test_interim_answers_are_skipped():
    post(
        answering(
            lambda one: one.sendall(
                b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
            )
        )
    )


def test_no_server_and_no_host():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/x", "http://no-such-host.invalid/x"):
        with pytest.raises(DeliveryError) as caught:
            post(url)
        assert str(caught.value).startswith(url.split("/")[2].split(":")[0])


def test_the_signature_is_that_of_standard_webhooks():
    """The example of the specification."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    number = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    found = webhook_request.signature(secret, number, 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = {
        **{"webhook-id": number, "webhook-timestamp": "1614265330", "webhook-signature": found},
    }
    assert Received("/", headers, body).is_signed(secret)
    assert not Received("/", headers, body + b" ").is_signed(secret)


def test_pauses_double_up_to_an_hour():
    pauses = [backoff_s(tries) for tries in range(1, 15)]
    assert pauses[:4] == [1, 2, 4, 8]
    assert pauses[-2:] == [3600, 3600]
    assert 3 * 3600 < sum(pauses) < 4 * 3600
