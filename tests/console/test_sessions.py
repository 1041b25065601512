"""Sessions end, and logins are counted, by the given time alone."""

from __future__ import annotations

from headrace.console.sessions import (
    AGE_S,
    IDLE_S,
    PER_IDENTITY_MAX,
    SESSIONS_MAX,
    Attempts,
    Sessions,
)


def test_a_cookie_is_good_until_its_time_is_over():
    sessions = Sessions()
    cookie = sessions.begin("7", 0.0)
    assert sessions.find(cookie, IDLE_S).identity == "7"
    assert sessions.find(cookie, 2 * IDLE_S).identity == "7"  # it was used meanwhile
    assert sessions.find(cookie, 3 * IDLE_S + 0.1) is None
    assert sessions.find("another", 0.0) is None
    assert sessions.find("", 0.0) is None


def test_also_who_uses_it_all_the_time_logs_in_again():
    sessions = Sessions()
    cookie = sessions.begin("7", 0.0)
    at = 0.0
    while at < AGE_S:
        assert sessions.find(cookie, at)
        at += IDLE_S / 2
    assert sessions.find(cookie, AGE_S + 1) is None


def test_who_has_gone_is_forgotten_and_knows_it():
    sessions = Sessions()
    cookie = sessions.begin("7", 0.0)
    session = sessions.find(cookie, 1.0)
    sessions.end(cookie)
    assert not session.open
    assert sessions.find(cookie, 1.0) is None
    other = sessions.find(sessions.begin("8", 0.0), 0.0)
    sessions.expire(IDLE_S + 1)
    assert not other.open
    assert sessions.identities() == set()
    assert len(sessions) == 0


def test_an_identity_has_so_many_and_takes_no_room_of_others():
    sessions = Sessions()
    cookies = [sessions.begin("7", float(at)) for at in range(PER_IDENTITY_MAX + 3)]
    assert [c for c in cookies if sessions.find(c, 100.0)] == cookies[3:]
    for number in range(SESSIONS_MAX):
        sessions.begin(f"x{number}", 100.0)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.begin("late", 100.0) is None
    assert sessions.begin("late", 100.0 + IDLE_S + 1) is not None


def test_tries_count_from_their_beginning():
    tries = Attempts(3)
    for _ in range(3):
        assert tries.wait_s("a", 10.0) == 0
        tries.begin("a", 10.0)
    assert tries.wait_s("a", 10.0) == 60
    assert tries.wait_s("a", 69.5) == 1
    assert tries.wait_s("b", 10.0) == 0
    assert tries.wait_s("a", 70.0) == 0


def test_who_is_right_is_not_counted():
    tries = Attempts(2)
    for at in range(20):
        assert tries.wait_s("a", float(at)) == 0
        tries.begin("a", float(at))
        tries.succeeded("a")


def test_keys_are_bounded():
    tries = Attempts(1)
    for number in range(5_000):
        tries.begin(str(number), 0.0)
    assert len(tries._made) <= 4_096
    assert tries.wait_s("4999", 0.0) == 60
