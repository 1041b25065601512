// The page: who is in, where one is, and what the server says, live.
import { html, render, useCallback, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { Engine } from "./engine.js";
import { Events } from "./events.js";
import { More, page, useManual } from "./manual.js";
import { Overview } from "./overview.js";
import { Sql } from "./sql.js";
import { View } from "./view.js";
import { body } from "./words.js";

const post = (path, body) => fetch(path, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
});

const PAGES = [["", "Views"], ["engine", "Engine"], ["events", "Events"], ["sql", "SQL"]];

function where() {
  const hash = location.hash;
  if (hash.startsWith("#/view/")) {
    try { return { page: "view", view: decodeURIComponent(hash.slice(7)) }; } catch { return { page: "views" }; }
  }
  return { page: PAGES.find(([id]) => hash.split("?")[0] === `#/${id}`)?.[0] || "views", hash };
}

function merged(before, told) {
  if (told.whole) return told.views;
  const out = { ...before };
  for (const [name, points] of Object.entries(told.views)) {
    const last = points[points.length - 1][0];
    out[name] = [...(out[name] ?? []), ...points].filter((p) => p[0] > last - 900);
  }
  return out;
}

// One stream, as long as the page is seen: a tab in the background costs nothing.
function useLive(view, log, ended) {
  const [state, setState] = useState({ samples: {} });
  const [connected, setConnected] = useState(false);
  useEffect(() => {
    let source = null;
    const close = () => { source?.close(); source = null; };
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource(`/api/events${view ? `?view=${encodeURIComponent(view)}` : log ? "?log=1" : ""}`);
      const take = (name, use) => source.addEventListener(name, (e) => { setConnected(true); const told = JSON.parse(e.data); setState((s) => use(s, told)); });
      take("overview", (s, overview) => ({ ...s, overview, trouble: null }));
      take("samples", (s, told) => ({ ...s, samples: merged(s.samples, told) }));
      take("processes", (s, told) => ({ ...s, processes: { ...s.processes, ...told } }));
      take("log", (s, told) => ({ ...s, newest: told.newest }));
      take("view", (s, told) => ({ ...s, view: told }));
      take("trouble", (s, told) => ({ ...s, trouble: told.message }));
      source.addEventListener("gone", (e) => { close(); ended(JSON.parse(e.data).message); });
      source.onerror = () => {
        setConnected(false);
        if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(() => ended(null), 1500); }
      };
    };
    const seen = () => (document.hidden ? close() : open());
    open();
    document.addEventListener("visibilitychange", seen);
    return () => { document.removeEventListener("visibilitychange", seen); close(); };
  }, [view, log, ended]);
  return [state, connected];
}

function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M6 11.500c3.3 0 3.3 3 6.7 3s3.3-3 6.6-3 3.3 3 6.7 3" /><path class="low" d="M6 18.500c3.3 0 3.3 3 6.7 3s3.3-3 6.6-3 3.3 3 6.7 3" /></svg>`;
}

function Login({ safe, why, entered }) {
  const [by, setBy] = useState("role");
  const [error, setError] = useState(why);
  const [busy, setBusy] = useState(false);
  const send = async (e) => {
    e.preventDefault();
    const form = new FormData(e.currentTarget);
    setBusy(true);
    try {
      const answer = await post("/api/login", by === "token" ? { token: form.get("token").trim() } : { role: form.get("role"), password: form.get("password") });
      if (answer.ok) entered(await answer.json());
      else setError((await body(answer))?.error ?? `the server answers ${answer.status}`);
    } catch { setError("the server does not answer"); }
    setBusy(false);
  };
  return html`<main class="login"><form onSubmit=${send} class="panel" aria-labelledby="login"><${Mark} /><h1 id="login">Headrace</h1>
    <p class="quiet">${by === "token" ? "With the token, you see everything that the engine's role may see." : "Log in as a role of the database. You see everything that the role may see."}</p>
    <div class="choice" role="group" aria-label="Log in with"><button type="button" aria-pressed=${by === "role"} onClick=${() => setBy("role")}>Role</button><button type="button" aria-pressed=${by === "token"} onClick=${() => setBy("token")}>Token</button></div>
    ${by === "token" ? html`<label>Token<input key="t" name="token" type="password" autocomplete="off" required autofocus /></label><p class="quiet">The token is in file <code>console.token</code> of the engine's data directory.</p>`
    : html`<label>Role<input key="r" name="role" autocomplete="username" autocapitalize="none" spellcheck=${false} required autofocus /></label><label>Password<input key="p" name="password" type="password" autocomplete="current-password" required /></label>`}
    ${safe ? null : html`<p class="error">This page was loaded without TLS from another computer. Logins are accepted over TLS, or from the server's own computer.</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <button type="submit" class="main" disabled=${busy || !safe}>${busy ? "Logging in …" : "Log in"}</button></form></main>`;
}

const KEYS = [["/", "search views"], ["j  k", "next, previous view in the list"], ["Enter", "open it"], ["g", "views"], ["e", "engine"], ["l", "events"], ["s", "SQL"], ["t", "dark or light"], ["?", "this help"], ["Esc", "back"]];

function Help({ close }) {
  const box = useRef(null);
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="help"><h2 id="help">Keys</h2><dl class="facts">${KEYS.map(([k, v]) => html`<div key=${k}><dt><kbd>${k}</kbd></dt><dd>${v}</dd></div>`)}</dl>
    <form method="dialog"><button type="submit">Close</button></form></dialog>`;
}

function useTheme() {
  const dark = () => document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const [theme, setTheme] = useState(dark);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)"), seen = () => setTheme(dark());
    media.addEventListener("change", seen);
    return () => media.removeEventListener("change", seen);
  }, []);
  const change = useCallback(() => {
    const next = dark() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("headrace-theme", next); } catch { /* not kept */ }
    setTheme(next);
  }, []);
  return [theme, change];
}

function useKeys(handlers) {
  const now = useRef(handlers);
  now.current = handlers;
  useEffect(() => {
    const down = (e) => {
      const field = e.target.closest?.("input, textarea, select");
      if (e.key === "Escape" && field) { field.blur(); return; }
      if (field || e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
      const act = now.current[e.key];
      if (act) { e.preventDefault(); act(); }
    };
    document.addEventListener("keydown", down);
    return () => document.removeEventListener("keydown", down);
  }, []);
}

function step(by) {
  const links = [...document.querySelectorAll(".views tbody th a")];
  const here = links.indexOf(document.activeElement);
  links[Math.max(0, Math.min(links.length - 1, here < 0 ? 0 : here + by))]?.focus();
}

function Console({ who, leave, ended }) {
  const [at, setAt] = useState(where);
  useManual();
  const [theme, change] = useTheme();
  const [help, setHelp] = useState(false);
  useEffect(() => {
    const moved = () => { setAt(where()); scrollTo(0, 0); };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const [state, connected] = useLive(at.view, at.page === "events", ended);
  const data = state.overview;
  useEffect(() => { document.title = at.view ? `${at.view} – Headrace` : "Headrace"; }, [at.view]);
  useKeys({
    "/": () => document.getElementById("search")?.focus(), j: () => step(1), k: () => step(-1),
    g: () => { location.hash = "#/"; }, e: () => { location.hash = "#/engine"; }, l: () => { location.hash = "#/events"; }, s: () => { location.hash = "#/sql"; }, t: change, "?": () => setHelp(true),
    Escape: () => { if (at.page !== "views") location.hash = "#/"; },
  });
  const engine = data?.facts.find((f) => f.fact === "engine");
  const [kind, words] = state.trouble ? ["warn", state.trouble] : !connected ? ["warn", "connecting"] : [engine?.value === "running" ? "ok" : "bad", html`<span class="more">engine </span>${engine?.value ?? "unknown"}`];
  return html`<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top"><a class="brand" href="#/"><${Mark} /><span>Headrace</span></a>
      <nav aria-label="Pages">${PAGES.map(([id, words]) => html`<a key=${id} href=${`#/${id}`} aria-current=${(id || "views") === (at.page === "view" ? "views" : at.page || "views") ? "page" : undefined}>${words}</a>`)}<${More} to=${page("start")} words="Manual" /></nav>
      <span class=${`pill ${kind}`} role="status"><i aria-hidden="true"></i><span>${words}</span></span>
      <span class="who"><span>${data?.role ?? who.role}</span><small>${data?.database ?? who.database}</small></span>
      <button type="button" class="icon" onClick=${change} aria-label=${theme === "dark" ? "Light colours" : "Dark colours"} title="Dark or light (t)">${theme === "dark" ? "☀" : "☾"}</button>
      <button type="button" class="icon" onClick=${() => setHelp(true)} aria-label="Keys" title="Keys (?)">?</button>
      <button type="button" class="small" onClick=${leave}>Log out</button></header>
    <main id="main" tabindex="-1">${!data ? html`<p class="empty" role="status">Loading …</p>`
      : at.page === "engine" ? html`<${Engine} data=${data} processes=${state.processes} theme=${theme} />`
      : at.page === "events" ? html`<${Events} key=${at.hash} newest=${state.newest} />`
      : at.page === "sql" ? html`<${Sql} who=${who} overview=${data} />`
      : at.page === "view" ? html`<${View} key=${at.view} name=${at.view} data=${state.view?.name === at.view ? state.view : null} overview=${data} theme=${theme} />`
      : html`<${Overview} data=${data} samples=${state.samples} />`}</main>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

function App() {
  const [me, setMe] = useState(null);
  const look = useCallback(async (why) => {
    try { setMe({ ...(await (await fetch("/api/me")).json()), why }); } catch { setTimeout(() => look(why), 2000); }
  }, []);
  useEffect(() => {
    // A link that was printed has the token behind "#", which no server is sent.
    const token = /^#token=([\w-]+)$/.exec(location.hash)?.[1];
    if (!token) { look(null); return; }
    history.replaceState(null, "", "/");
    post("/api/login", { token }).then(() => look(null), () => look("the server does not answer"));
  }, []);
  const leave = useCallback(async () => { await post("/api/logout", {}); look(null); }, []);
  if (!me) return html`<p class="boot">Headrace</p>`;
  if (!me.role) return html`<${Login} safe=${me.safe} why=${me.why} entered=${() => look(null)} />`;
  return html`<${Console} who=${me} leave=${leave} ended=${look} />`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
