// Numbers, times and SQL as people read them.

// The body of an answer; null if it is no JSON, such as a proxy's page. A read that is aborted stays an error.
export function body(answer) {
  return answer.json().catch((error) => { if (error instanceof SyntaxError) return null; throw error; });
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(value) {
  if (value == null) return "–";
  let unit = 0, n = Number(value);
  while (n >= 1000 && unit < UNITS.length - 1) { n /= 1024; unit += 1; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${UNITS[unit]}`;
}

export function count(value) {
  if (value == null) return "–";
  const n = Number(value);
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)} G`;
  if (n >= 1e7) return `${(n / 1e6).toFixed(1)} M`;
  return Math.round(n).toLocaleString("en-US").replace(/,/g, "\u202f");
}

export function rate(value) {
  if (value == null) return "–";
  const n = Number(value);
  if (n === 0) return "0";
  if (n < 10) return n.toFixed(n < 0.1 ? 2 : 1);
  if (n >= 1e5) return `${(n / 1e3).toFixed(0)} k`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)} k`;
  return count(n);
}

export function ms(value) {
  if (value == null) return "–";
  const n = Number(value);
  if (n === 0) return "0 ms";
  if (n < 1) return "< 1 ms";
  if (n < 1000) return `${Math.round(n)} ms`;
  return span(n / 1000);
}

export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function micros(value) {
  if (value == null) return "–";
  const n = Number(value);
  return n < 1000 ? `${n} µs` : ms(n / 1000);
}

export function when(epoch) {
  if (epoch == null) return "–";
  const at = new Date(epoch * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function percent(share) {
  if (share == null) return "–";
  const n = share * 100;
  return `${n > 0 && n < 10 ? n.toFixed(1) : Math.round(n)} %`;
}

export const link = (name) => `#/view/${encodeURIComponent(name)}`;

// A string literal of SQL.
export function literal(text) {
  const doubled = String(text).replace(/'/g, "''");
  return doubled.includes("\\") ? `E'${doubled.replace(/\\/g, "\\\\")}'` : `'${doubled}'`;
}

// Parts of a qualified name, as format('%I.%I') writes it.
export function parts(name) {
  const found = String(name).match(/^("(?:[^"]|"")*"|[^".]+)\.("(?:[^"]|"")*"|[^"]+)$/s);
  const plain = (s) => (s.startsWith('"') ? s.slice(1, -1).replace(/""/g, '"') : s);
  return found ? [plain(found[1]), plain(found[2])] : ["", String(name)];
}

export const STATUS = {
  running: ["ok", "running"],
  populating: ["busy", "being filled"],
  pending: ["busy", "waits to be filled"],
  starting: ["busy", "starting"],
  paused: ["idle", "paused"],
  sink_error: ["bad", "cannot be written"],
  error: ["bad", "stopped"],
  stopped: ["bad", "no engine"],
};

// [tone, words] of an assertion.
export const ASSERTED = { holds: ["ok", "holds"], violated: ["bad", "violated"], unknown: ["warn", "not known"] };

// Where they say more than the status.
const CURSORS = {
  catching_up: ["busy", "catching up"],
  lost: ["bad", "waits for its worker"],
};

// Those that need attention first: stopped, then late, then being filled.
const RANK = { bad: 0, warn: 1, busy: 2, idle: 3, ok: 4 };
export const rank = (view) => RANK[tone(view)[0]];

// [tone, words] of a view; a running view that is late is a warning.
export function tone(view) {
  const [kind, words] = CURSORS[view.cursor] ?? STATUS[view.status] ?? ["idle", view.status];
  if (kind === "ok" && view.held_by && view.lag_ms > 1000) return ["warn", "late"];
  return [kind, words];
}

const REPAIRS = { resync_view: "rebuilds it from its tables", alter_view: "gives it another query", resume_view: "continues from its last position" };

// The calls that a text of the engine names: it knows which call repairs a view.
export function calls(text, name) {
  const found = [...(text ?? "").matchAll(/(?:([^.;]*?), then )?(CALL headrace\.(\w+))(\((?:[^()']|'(?:[^']|'')*')*\))?/g)];
  return found.filter(([, , , verb, given]) => given || (name && ["resync_view", "resume_view"].includes(verb)))
    .map(([, first, call, verb, given]) => [`${call}${given ?? `(${literal(name)})`};`, first ? `first: ${first.trim()}` : REPAIRS[verb] ?? ""]);
}

// What helps a view in trouble: [what to run, why].
export function repairs(view) {
  const out = calls(`${view.message ?? ""}`, view.name);
  if (view.status === "paused") out.push([`CALL headrace.resume_view(${literal(view.name)});`, REPAIRS.resume_view]);
  for (const [, pid] of (view.held_by ?? "").matchAll(/(?:locked by|;) process (\d+) \(/g)) {
    out.push([`SELECT pg_terminate_backend(${pid});`, `ends the session of process ${pid}, which locks its table; its transaction is rolled back`]);
  }
  if (view.cursor === "lost") out.push(["SELECT * FROM headrace.workers();", "shows the worker that is away: start it again, and the view goes on"]);
  if (view.status === "stopped") out.push(["headrace start", "in a shell: starts the engine, and the view goes on"]);
  return out;
}

// Calls that may be useful besides, by status.
export function remedies(view) {
  const name = literal(view.name);
  const out = [];
  if (view.status === "running") {
    out.push([`SELECT * FROM headrace.verify_view(${name});`, "compares it with its query"]);
    out.push([`CALL headrace.pause_view(${name});`, "stops its updates, until resume_view"]);
  }
  out.push([`SELECT * FROM headrace.lag_history(${name});`, "shows its lag over the last week"]);
  out.push([`SELECT * FROM headrace.explain_view(${name});`, "shows its plan as text"]);
  return out;
}
