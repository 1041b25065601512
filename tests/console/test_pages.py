"""Every page in Chromium, at a desk and on a phone, with views in each state."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest

from tests.console.browser import (
    CHROMIUM,
    DRIVER,
    SIZES,
    appears,
    browser_only,
    flaws,
    make_browser,
    resize,
    text_of,
    type_into,
)
from tests.console.web import port_of
from tests.waiting import wait_until

SUM = "SELECT g, sum(x) AS x FROM page_t GROUP BY g"
VIEWS = {
    "page_sum": SUM,
    "page_zero": "SELECT id, 1 / x AS y FROM page_t",
    "page_still": "SELECT count(*) AS n FROM page_t",
}

pytestmark = [pytest.mark.engine_with("--http", "127.0.0.1:0"), browser_only]


@pytest.fixture(scope="module")
def scene(running_engine):
    """A view that runs, one that has stopped, one that is paused; a violated assertion."""
    engine = running_engine
    with psycopg.connect(engine.source, autocommit=True) as source:
        source.execute("CREATE TABLE page_t (id int PRIMARY KEY, g int, x numeric NOT NULL)")
        source.execute("INSERT INTO page_t SELECT i, i % 5, i FROM generate_series(1, 100) i")
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            for name, query in VIEWS.items():
                conn.execute("CALL headrace.create_view(%s, %s)", (name, query))
            conn.execute("CALL headrace.pause_view('page_still')")
            query = "SELECT id FROM page_t WHERE x = 0"
            conn.execute("CALL headrace.create_assertion('page_positive', %s)", (query,))
        source.execute("INSERT INTO page_t VALUES (101, 1, 0)")
        stopped = "SELECT name FROM headrace.list_views() WHERE status = 'error'"
        wait_until(
            lambda: source.execute(stopped).fetchall() == [("public.page_zero",)], "it stops"
        )
        yield SimpleNamespace(engine=engine, port=port_of(engine), source=source)
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.drop_assertion('page_positive')")
            for (name,) in conn.execute("SELECT name FROM headrace.list_views()").fetchall():
                conn.execute("CALL headrace.drop_view(%s)", (name,))
        source.execute("DROP TABLE page_t")


@pytest.fixture(scope="module")
def browser(scene):
    """A browser in which postgres is logged in, with its password."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromium-driver are not installed")
    driver = make_browser(*SIZES["desk"])
    try:
        driver.get(f"http://127.0.0.1:{scene.port}/")
        role, password = appears(driver, "input", 2)
        assert_is_good(driver)
        role.send_keys("postgres")
        password.send_keys("x\n")
        appears(driver, ".views tbody tr", 3)
        yield driver
    finally:
        driver.quit()


def assert_is_good(driver):
    """Check the present page on each screen."""
    try:
        for width, height in SIZES.values():
            resize(driver, width, height)
            assert flaws(driver) == [], (driver.current_url, width)
    finally:
        resize(driver, *SIZES["desk"])


def visit(driver, page, selector, count=1):
    driver.execute_script("location.hash = arguments[0]", page)
    return appears(driver, selector, count)


def act(driver, words):
    """Press a button of the SQL page."""
    driver.execute_script(
        "[...document.querySelectorAll('.acts button')]"
        ".find((b) => b.textContent === arguments[0]).click()",
        words,
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("page", "selector"),
    [
        ("#/", ".fleet svg.lines"),
        ("#/view/public.page_sum", "g.node"),
        ("#/view/public.page_zero", ".trouble"),
        ("#/view/public.page_still", "g.node"),
        ("#/view/public.nothing", "#main .panel"),
        ("#/engine", "[aria-labelledby=processes] .u-legend"),
        ("#/events", ".log li"),
        ("#/sql", "#query"),
    ],
)
def test_every_page_on_every_screen(browser, page, selector, theme):
    browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    visit(browser, page, selector)
    assert_is_good(browser)


def test_those_that_stand_still_come_first_with_the_call_that_helps(browser):
    visit(browser, "#/", ".views tbody tr", 3)
    names = "return [...document.querySelectorAll('.views tbody th a')].map((a) => a.textContent)"
    assert browser.execute_script(names) == [
        "public.page_zero",
        "public.page_still",
        "public.page_sum",
    ]
    attention = "return document.querySelector('.attention').innerText"
    told = browser.execute_script(attention)
    assert "CALL headrace.resync_view('public.page_zero');" in told
    assert "SELECT * FROM public.page_positive;" in told
    visit(browser, "#/view/public.page_still", ".run")
    wait_until(
        lambda: "CALL headrace.resume_view('public.page_still');" in text_of(browser), "it helps"
    )


def test_a_locked_table_names_the_session_to_end(scene, browser):
    visit(browser, "#/", ".views tbody tr", 3)
    with psycopg.connect(scene.engine.source) as locker:
        locker.execute("LOCK TABLE page_sum IN ACCESS EXCLUSIVE MODE")
        pid = locker.info.backend_pid
        scene.source.execute("INSERT INTO page_t SELECT max(id) + 1, 1, 7 FROM page_t")
        wait_until(
            lambda: f"SELECT pg_terminate_backend({pid});" in text_of(browser),
            lambda: text_of(browser)[:2000],
        )
        assert flaws(browser) == []


def test_links_lead_into_the_manual(scene, browser):
    visit(browser, "#/view/public.page_zero", ".trouble a.doc")
    links = browser.execute_script(
        "return [...document.querySelectorAll('a.doc')].map((a) => a.getAttribute('href'))"
    )
    visit(browser, "#/", "thead a.doc", 9)
    links += browser.execute_script(
        "return [...document.querySelectorAll('a.doc')].map((a) => a.getAttribute('href'))"
    )
    assert any("#row-" in link for link in links), links
    there = browser.execute_async_script(
        "const [links, done] = arguments; Promise.all(links.map(async (link) => {"
        " const [path, id] = link.split('#');"
        " const text = await (await fetch(path)).text();"
        ' return id && !text.includes(`id="${id}"`) ? link : null; }))'
        ".then((all) => done(all.filter(Boolean)))",
        sorted(set(links)),
    )
    assert there == []


def test_a_query_is_checked_drawn_and_created(scene, browser):
    visit(browser, "#/sql", "#query")
    type_into(browser, "#query", "SELECT g,\n  sum(ex) FROM page_t GROUP BY g")
    act(browser, "Check")
    appears(browser, ".trouble .at")
    told = browser.execute_script("return document.querySelector('.trouble').innerText")
    line, caret = told.split("\n")[1:3]
    assert line == "LINE 2:   sum(ex) FROM page_t GROUP BY g"
    assert line[caret.index("^") :].startswith("ex)")
    assert "42703" in told
    assert_is_good(browser)
    type_into(browser, "#query", SUM)
    act(browser, "Explain")
    appears(browser, "g.node", 3)
    assert_is_good(browser)
    type_into(browser, "[name=view]", "page_made")
    type_into(browser, "[name=options]", "{")
    act(browser, "Create view")
    wait_until(lambda: "the options are not a JSON object" in text_of(browser), "it says so")
    type_into(browser, "[name=options]", '{"key": ["g"]}')
    act(browser, "Create view")
    appears(browser, ".good a")
    assert_is_good(browser)
    rows = scene.source.execute("SELECT g, x FROM page_made ORDER BY g").fetchall()
    assert rows == scene.source.execute(f"{SUM} ORDER BY g").fetchall()
    browser.execute_script("document.querySelector('.good a').click()")
    wait_until(
        lambda: "public.page_made" in browser.execute_script("return document.title"), "open"
    )


def test_events_are_filtered_and_come_by_themselves(scene, browser):
    visit(browser, "#/events?view=page_zero&level=warning", ".log li")
    events = "return [...document.querySelectorAll('.log .what > a:first-child')].map((a) => [a.textContent, a.getAttribute('href')])"
    (name, address), *_ = browser.execute_script(events)
    assert (name, address) == ("view stopped", "/manual/manual/events.html#row-view-stopped")
    assert "running" not in text_of(browser).split("Events", 2)[2]
    visit(browser, "#/events?view=page_still", ".log li")
    before = len(browser.execute_script(events))
    with psycopg.connect(scene.engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.resync_view('page_still')")
    wait_until(lambda: len(browser.execute_script(events)) > before, "they come")
    type_into(browser, ".filters input[aria-label=Text]", "there is no such text")
    wait_until(lambda: "No event matches the filter." in text_of(browser), "none is left")
    assert_is_good(browser)
    visit(browser, "#/view/public.page_zero", "[aria-labelledby=about] a[href^='#/events']")
    browser.execute_script(
        "document.querySelector(\"[aria-labelledby=about] a[href^='#/events']\").click()"
    )
    appears(browser, ".log li")
    view = "return document.querySelector('.filters input[aria-label=View]').value"
    assert browser.execute_script(view) == "public.page_zero"


READ = """
const done = arguments[0], stop = new AbortController();
import('/static/words.js').then(async ({ body }) => {
  const answer = await fetch('/api/log', { signal: stop.signal });
  stop.abort();
  const aborted = await body(answer).then(() => 'was read', (error) => error.name);
  done([aborted, await body(new Response('<html>')), await body(new Response('[1]'))]);
});
"""


def test_an_aborted_answer_is_not_an_empty_one(browser):
    assert browser.execute_async_script(READ) == ["AbortError", None, [1]]


DRAW = """
const [count, done] = arguments;
Promise.all([import('/static/vendor/preact-htm.js'), import('/static/fleet.js')]).then(([p, f]) => {
  const now = 1000000, samples = {};
  for (let n = 0; n < count; n += 1) {
    samples[`public.v${n}`] = Array.from({length: 90}, (_, i) =>
      [now - 900 + 10 * i, 5 + n % 7, 10 + n * 3 + (i % 5), n]);
  }
  const place = document.createElement('div');
  place.id = 'drawn';
  document.getElementById('main').prepend(place);
  p.render(p.html`<${f.Fleet} samples=${samples} now=${now} />`, place);
  done(true);
});
"""


@pytest.mark.parametrize("size", SIZES)
def test_two_hundred_views_in_one_chart(browser, size):
    visit(browser, "#/sql", "#query")
    try:
        resize(browser, *SIZES[size])
        assert browser.execute_async_script(DRAW, 200)
        appears(browser, "#drawn svg.lines path.worst", 5)
        named = "return document.querySelector('#drawn .named').innerText"
        told = browser.execute_script(named)
        assert all(f"public.v{n}" in told for n in range(195, 200))
        assert "195 more views" in told
        assert flaws(browser) == []
        # A grey line is named when it is pointed at.
        point = """
        const svg = document.querySelector('#drawn svg.lines'), box = svg.getBoundingClientRect();
        const [x, y] = svg.querySelector('.others').getAttribute('d').split('M').at(-1)
          .match(/^([\\d.]+) ([\\d.]+)/).slice(1).map(Number);
        svg.dispatchEvent(new PointerEvent('pointermove',
          {bubbles: true, clientX: box.left + x, clientY: box.top + y, pointerType: 'mouse'}));
        """
        browser.execute_script(point)
        appears(browser, "#drawn .near-name a")
        label = browser.execute_script(
            "return document.querySelector('#drawn .near-name').innerText"
        )
        assert label.startswith("public.v0 ")
        assert " ms at " in label
    finally:
        resize(browser, *SIZES["desk"])
        browser.execute_script("document.getElementById('drawn').remove()")


def test_progress_is_a_share(browser):
    visit(browser, "#/sql", "#query")
    shown = browser.execute_async_script(
        "const done = arguments[0];"
        "Promise.all([import('/static/vendor/preact-htm.js'), import('/static/pieces.js')])"
        ".then(([p, f]) => { const place = document.createElement('div');"
        " p.render(p.html`<${f.Filling} view=${{name: 'v', percent: 42, left: '3 s'}} />`, place);"
        " document.body.append(place);"
        " const told = [place.innerText, place.querySelector('[role=progressbar]').ariaValueNow];"
        " place.remove(); done(told); })"
    )
    assert shown == ["42 %, about 3 s left", "42"]
