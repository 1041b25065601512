"""The console of a running engine: the data that roles may see, and the page in a browser."""

from __future__ import annotations

import functools
import itertools
import json
from types import SimpleNamespace

import psycopg
import pytest

from tests.console.browser import (
    CHROMIUM,
    DRIVER,
    WIDTHS,
    appears,
    browser_only,
    complaints,
    make_browser,
    press,
    requests,
    resize,
    text_of,
)
from tests.console.web import Client, port_of, token_of
from tests.waiting import wait_until

ROLES = ("console_a", "console_b", "console_c")
HOSTILE = '<img src=x onerror="document.title=1">'
QUERY = "SELECT id, label::int AS n FROM console_a.t -- </pre><script>document.title = 2</script>"

pytestmark = pytest.mark.engine_with("--http", "127.0.0.1:0")


@pytest.fixture(scope="module")
def scene(running_engine):
    """Two roles; a's view has failed on a row that only a may see, and has a hostile name."""
    engine = running_engine
    with psycopg.connect(engine.source, autocommit=True) as source:
        for role in ROLES:
            source.execute(f"DROP ROLE IF EXISTS {role}")
            source.execute(f"CREATE ROLE {role} LOGIN")
            source.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
        source.execute("CREATE TABLE orders (id int PRIMARY KEY, country text, amount numeric)")
        source.execute("CREATE TABLE countries (country text PRIMARY KEY, name text)")
        source.execute("INSERT INTO countries VALUES ('no', 'Norway'), ('pe', 'Peru')")
        source.execute(
            "INSERT INTO orders SELECT i, (ARRAY['no', 'pe'])[1 + i % 2], i"
            " FROM generate_series(1, 500) i"
        )
        with psycopg.connect(engine.dsn, autocommit=True, user="console_a") as conn:
            conn.execute("CREATE TABLE console_a.t (id int PRIMARY KEY, label text)")
            make = "CALL headrace.create_view(%s, %s)"
            conn.execute(make, ("console_a.secret", QUERY))
            name = HOSTILE.replace('"', '""')
            conn.execute(make, (f'console_a."{name}"', "SELECT id FROM console_a.t"))
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute(
                "CALL headrace.create_view('sales', 'SELECT c.name, count(*), sum(o.amount) AS"
                " amount FROM orders o JOIN countries c USING (country) GROUP BY c.name')"
            )
            conn.execute("CALL headrace.create_index('sales', '(name)')")
        source.execute("INSERT INTO console_a.t VALUES (1, 'hunter2')")
        stopped = "SELECT count(*) FROM headrace.list_views() WHERE status = 'error'"
        wait_until(lambda: source.execute(stopped).fetchone() == (1,), "it stops")
        yield SimpleNamespace(engine=engine, port=port_of(engine), source=source)
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            names = conn.execute("SELECT name FROM headrace.list_views()").fetchall()
            for (name,) in names:
                conn.execute("CALL headrace.drop_view(%s)", (name,))
        for role in ROLES:
            source.execute(f"DROP OWNED BY {role} CASCADE")
            source.execute(f"DROP ROLE {role}")


@pytest.fixture
def client(scene):
    return Client(scene.port)


def logged_in(client, role):
    status, _ = client.post("/api/login", {"role": role, "password": "any: it is trusted"})
    assert status == 200
    return client


def with_token(scene, client):
    status, told = client.post("/api/login", {"token": token_of(scene.engine)})
    assert (status, told["role"]) == (200, "postgres")
    return client


def everything(client, view):
    """Return the first events as text, and by name."""
    out = {}
    for name in (None, view):
        stream = client.events(name)
        wanted = {"overview", "view"} if name else {"overview", "samples"}
        for event, data in stream:
            out[event] = data
            if wanted <= out.keys():
                break
        stream.close()
    return json.dumps(out), out


def rows(view, **more):
    return {v["name"]: v for v in view["overview"]["views"]} | more


def test_an_owner_sees_the_row_that_stopped_his_view(scene, client):
    _, told = everything(logged_in(client, "console_a"), "console_a.secret")
    assert "hunter2" in told["view"]["message"]
    assert told["view"]["query"] == QUERY
    assert told["view"]["sqlstate"] == "22P02"
    assert told["view"]["graph"]["nodes"][0]["kind"] == "Sink"
    assert told["view"]["tables"] == ["console_a.t"]
    assert told["overview"]["role"] == "console_a"
    seen = rows(told)
    assert seen["console_a.secret"]["owner"] == "console_a"
    assert seen["public.sales"]["owner"] is None
    # Facts about the engine are only for members of its role.
    assert told["overview"]["workers"] == told["overview"]["batches"] == []
    assert {m["view"] for m in told["overview"]["memory"]} <= {
        *("console_a.secret", 'console_a."<img src=x onerror=""document.title=1"">"'),
    }


def test_assertions_are_shown_to_roles_that_may_read_them(scene, client):
    with psycopg.connect(scene.engine.dsn, autocommit=True) as conn:
        query = "SELECT id FROM orders WHERE amount IS NULL"
        conn.execute("CALL headrace.create_assertion('priced', %s)", (query,))
        try:
            _, told = everything(logged_in(client, "console_b"), "public.sales")
            assert told["overview"]["assertions"] == []
            conn.execute("GRANT SELECT ON priced TO console_b")
            found = wait_until(
                lambda: everything(client, "public.sales")[1]["overview"]["assertions"],
                "it is seen",
            )
            assert [(a["name"], a["rows"], a["webhook"]) for a in found] == [
                ("public.priced", 0, None)
            ]
        finally:
            conn.execute("CALL headrace.drop_assertion('priced')")


def test_another_role_sees_names_and_nothing_in_them(scene, client):
    text, told = everything(logged_in(client, "console_b"), "console_a.secret")
    assert told["view"] == {"name": "console_a.secret", "missing": True}
    assert "hunter2" not in text
    assert "label" not in text
    seen = rows(told)["console_a.secret"]
    assert (seen["status"], seen["message"], seen["owner"]) == ("error", None, None)
    assert told["samples"] == {"whole": True, "views": {}}
    assert told["overview"]["memory"] == []


def test_the_token_sees_all(scene, client):
    _, told = everything(with_token(scene, client), "public.sales")
    assert "hunter2" in rows(told)["console_a.secret"]["message"]
    assert [w["worker"] for w in told["overview"]["workers"]] == ["main"]
    assert any(m["part"] == "process" for m in told["overview"]["memory"])
    graph = told["view"]["graph"]
    kinds = [n["kind"] for n in graph["nodes"]]
    assert kinds[0] == "Sink"
    assert kinds.count("Source") == 2
    assert {s["node"] for s in told["view"]["stats"]} <= {n["id"] for n in graph["nodes"]}
    assert any("sales_name" in index for index in told["view"]["indexes"])


@pytest.mark.parametrize(
    "name", ["x'; DROP TABLE orders; --", "no.such", "%00", '"', "💥" * 20, "public.orders"]
)
def test_a_view_that_is_none(scene, client, name):
    assert logged_in(client, "console_b").first("view", name) == {"name": name, "missing": True}


@pytest.mark.parametrize(("name", "status"), [("a%00b", 400), ("x" * 400, 400)])
def test_a_name_that_can_be_none(scene, client, name, status):
    assert logged_in(client, "console_b").get(f"/api/events?view={name}")[0] == status


def test_a_session_ends_with_its_cookie(scene, client):
    assert json.loads(client.get("/api/me")[1]) == {"role": None, "safe": True}
    assert client.get("/api/events")[0] == 401
    logged_in(client, "console_a")
    given = client.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {p.strip() for p in given.split(";")}
    assert json.loads(client.get("/api/me")[1])["role"] == "console_a"
    cookie, stream = client.cookie, client.events()
    assert next(stream)[0] == "overview"
    # After a logout, another session of the same role goes on.
    other = logged_in(Client(scene.port), "console_a")
    assert client.post("/api/logout", {})[0] == 200
    client.cookie = cookie
    assert client.get("/api/events")[0] == 401
    assert "gone" in (event for event, _ in itertools.islice(stream, 20))
    assert json.loads(other.get("/api/me")[1])["role"] == "console_a"
    assert other.first("overview")["role"] == "console_a"


def test_a_cookie_of_somebody_else_is_none(scene, client):
    logged_in(client, "console_a")
    for wrong in ("", "x", client.cookie[:-1], client.cookie + "x"):
        other = Client(scene.port)
        other.cookie = wrong
        assert json.loads(other.get("/api/me")[1])["role"] is None


def test_who_leaves_lets_his_connection_go(scene):
    """A role has one connection for all tabs, and none when the last one is closed."""
    backends = functools.partial(
        scene.source.execute,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name = 'headrace console' AND usename = 'console_c'",
    )
    cookies = [logged_in(Client(scene.port), "console_c") for _ in range(3)]
    streams = [c.events() for c in cookies for _ in range(4)]
    assert {next(stream)[0] for stream in streams} == {"overview"}
    assert backends().fetchone() == (1,)
    for stream in streams:
        stream.close()
    for one in cookies:
        one.post("/api/logout", {})
    wait_until(lambda: backends().fetchone() == (0,), "it is closed")


@pytest.fixture(scope="module")
def browser(scene):
    """A browser that is logged in with the printed link."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromium-driver are not installed")
    driver = make_browser()
    try:
        driver.get(f"http://127.0.0.1:{scene.port}/#token={token_of(scene.engine)}")
        appears(driver, ".views tbody tr")
        # The token is gone from the address and from the history.
        assert driver.execute_script("return location.href").endswith(f":{scene.port}/")
        yield driver
    finally:
        driver.quit()


FIRST_PAINT = {"vendor/uPlot.css", "style.css", "theme.js"}


@browser_only
def test_the_page_asks_nobody_else_is_small_quick_and_quiet(scene, browser):
    home = f"http://127.0.0.1:{scene.port}/"
    browser.execute_script("location.hash = '#/view/public.sales'")
    appears(browser, "g.node")
    appears(browser, "[aria-label*='over time'] canvas, .panel .empty")
    # The first paint waits for these alone.
    blocking = browser.execute_script(
        "return performance.getEntriesByType('resource')"
        ".filter((e) => e.renderBlockingStatus === 'blocking').map((e) => e.name)"
    )
    assert {u.removeprefix(f"{home}static/") for u in blocking} == FIRST_PAINT
    urls, sizes = requests(browser)
    assert home in urls
    assert {u for u in urls if not u.startswith((home, "data:"))} == set()
    # The token stays local: no request contained it, and it is gone from the address.
    assert token_of(scene.engine) not in " ".join(urls)
    assert browser.execute_script("return location.hash") == "#/view/public.sales"
    files = {u: n for u, n in sizes.items() if "/api/" not in u}
    assert len(files) > 8
    assert sum(files.values()) < 400_000
    assert complaints(browser) == []


@browser_only
def test_what_users_name_and_write_is_text(scene, browser):
    browser.execute_script("location.hash = '#/'")
    appears(browser, ".views tbody tr", 3)
    assert HOSTILE in text_of(browser).replace('""', '"')
    links = browser.execute_script(
        "return [...document.querySelectorAll('.views tbody th a')].map((a) => a.textContent)"
    )
    hostile = next(name for name in links if "<img" in name)
    for name in ("console_a.secret", hostile):
        browser.execute_script("location.hash = '#/view/' + encodeURIComponent(arguments[0])", name)
        appears(browser, ".sql")
        wait_until(lambda name=name: name in text_of(browser), "its name stands there")
        assert browser.execute_script("return document.title") == f"{name} – Headrace"
        assert browser.execute_script("return document.querySelectorAll('#app img').length") == 0
        assert browser.execute_script("return document.querySelectorAll('#app script').length") == 0
    browser.execute_script("location.hash = '#/events?view=img'")
    appears(browser, ".log li")
    assert "<img src=x onerror" in text_of(browser)
    assert browser.execute_script("return document.querySelectorAll('#app img').length") == 0
    browser.execute_script("location.hash = '#/view/console_a.secret'")
    wait_until(lambda: QUERY in text_of(browser), "the query as it was written")
    assert "hunter2" in text_of(browser)
    assert "CALL headrace.resync_view('console_a.secret');" in text_of(browser)
    assert complaints(browser) == []


@browser_only
def test_keys_lead_everywhere(scene, browser):
    browser.execute_script("location.hash = '#/'")
    rows = appears(browser, ".views tbody tr", 3)
    press(browser, "j")
    press(browser, "j")
    second = browser.execute_script("return document.activeElement.textContent")
    assert second == rows[1].find_element("css selector", "th").text
    browser.execute_script("document.activeElement.click()")
    appears(browser, "h1")
    wait_until(lambda: second in browser.execute_script("return document.title"), "it is open")
    press(browser, "Escape")
    appears(browser, ".views tbody tr", 3)
    press(browser, "/")
    assert browser.execute_script("return document.activeElement.id") == "search"
    press(browser, "Escape")
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    press(browser, "t")
    after = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert before != after
    press(browser, "t")
    press(browser, "?")
    appears(browser, "dialog[open]")
    browser.execute_script("document.querySelector('dialog').close()")
    press(browser, "e")
    appears(browser, ".facts dt", 5)
    lines = browser.execute_script("return document.querySelector('main').innerText").split("\n")
    assert lines[0] == "Engine"
    assert "div" not in lines
    # A value and its hint are separate lines.
    hints = browser.execute_script(
        "return [...document.querySelectorAll('.facts dd')].filter((d) => d.querySelector('small.hint'))"
        ".map((d) => [d.innerText, d.querySelector('small.hint').innerText])"
    )
    assert hints, "a view has stopped"
    assert all("\n" + hint in text for text, hint in hints), hints
    press(browser, "g")
    appears(browser, ".views tbody tr", 3)


@browser_only
def test_a_node_tells_what_it_costs(scene, browser):
    browser.execute_script("location.hash = '#/view/public.sales'")
    appears(browser, "g.node", 4)
    names = browser.execute_script(
        "return [...document.querySelectorAll('g.node')].map((g) => g.getAttribute('aria-label'))"
    )
    assert any(name.startswith("Join") for name in names)
    assert all(name for name in names)
    browser.execute_script(
        "const g = [...document.querySelectorAll('g.node')].find((g) =>"
        " g.getAttribute('aria-label').startsWith('Join')); g.focus();"
    )
    press(browser, "Enter")
    appears(browser, ".node-facts dl")
    facts = browser.execute_script("return document.querySelector('.node-facts').innerText")
    assert "rows of both sides" in facts
    assert "O(changes" in facts


AXE = """
const parts = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
const light = (c) => { const [r, g, b] = parts(c).map((v) => { v /= 255;
  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const under = (e) => { for (let n = e; n; n = n.parentElement) {
  const c = getComputedStyle(n).backgroundColor; const p = parts(c);
  if (p.length === 3 || p[3] === 1) return c; } return 'rgb(255,255,255)'; };
const bad = [];
for (const e of document.querySelectorAll('#app *')) {
  const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!text || e.closest('svg') || !e.getClientRects().length || e.disabled) continue;
  const [a, b] = [light(getComputedStyle(e).color), light(under(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.push(`${e.tagName} "${e.textContent.slice(0, 30)}" ${ratio.toFixed(2)}`);
}
for (const e of document.querySelectorAll('button, a, input, [role=img], [role=button]')) {
  const name = e.getAttribute('aria-label') || e.textContent.trim()
    || e.labels?.[0]?.textContent || e.title;
  if (!name) bad.push(`no name: ${e.outerHTML.slice(0, 80)}`);
}
return bad;
"""


@browser_only
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_can_read_it_at_any_width(scene, browser, theme):
    """Names of controls, contrast of text (WCAG AA), and no overflow."""
    browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    try:
        for page, selector in (
            ("#/", ".views tbody tr"),
            ("#/view/public.sales", "g.node"),
            ("#/view/console_a.secret", ".trouble"),
            ("#/engine", ".facts dt"),
            ("#/events", ".log li"),
            ("#/sql", "#query"),
        ):
            browser.execute_script("location.hash = arguments[0]", page)
            appears(browser, selector)
            for width, height in WIDTHS.values():
                resize(browser, width, height)
                overflow = browser.execute_script(
                    "return document.documentElement.scrollWidth - innerWidth"
                )
                assert overflow <= 0, (page, width)
            assert browser.execute_script(AXE) == [], (page, theme)
    finally:
        resize(browser, *WIDTHS["desktop"])


@browser_only
@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 360, 2560])
def test_very_narrow_and_very_wide(scene, browser, width):
    try:
        resize(browser, width, 900)
        for page in ("#/", "#/view/public.sales", "#/engine", "#/events", "#/sql"):
            browser.execute_script("location.hash = arguments[0]", page)
            appears(browser, "#main .panel")
            extra = "return document.documentElement.scrollWidth - innerWidth"
            assert browser.execute_script(extra) <= 0
    finally:
        resize(browser, *WIDTHS["desktop"])


@browser_only
@pytest.mark.slow
def test_it_is_as_dark_as_the_system(scene):
    driver = make_browser(color_scheme="dark")
    try:
        driver.get(f"http://127.0.0.1:{scene.port}/")
        appears(driver, "form.panel")
        color = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, color.strip("rgb()").split(","))) < 150
        assert "Role" in text_of(driver)
    finally:
        driver.quit()


@browser_only
@pytest.mark.slow
def test_a_wrong_login_says_so(scene):
    driver = make_browser()
    try:
        driver.get(f"http://127.0.0.1:{scene.port}/")
        appears(driver, "form.panel")
        role, password = appears(driver, "input", 2)
        role.send_keys("console_nobody")
        password.send_keys("x\n")
        wait_until(lambda: "rejected this role" in text_of(driver), "it says so")
        role.clear()
        role.send_keys("console_b")
        password.send_keys("x\n")
        appears(driver, ".views tbody tr")
        assert "console_b" in text_of(driver)
        assert "hunter2" not in text_of(driver)
    finally:
        driver.quit()
