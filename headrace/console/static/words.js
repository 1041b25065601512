// Numbers, times and SQL as people read them.

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
  sink_error: ["warn", "cannot be written"],
  error: ["bad", "stopped"],
  stopped: ["bad", "no engine"],
};

// [tone, words] of an assertion.
export const ASSERTED = { holds: ["ok", "holds"], violated: ["bad", "violated"], unknown: ["warn", "not known"] };

// Where they say more than the status.
const CURSORS = {
  catching_up: ["busy", "catching up"],
  lost: ["warn", "waits for its worker"],
};

// [tone, words] of a view; a running view that is late is a warning.
export function tone(view) {
  const [kind, words] = CURSORS[view.cursor] ?? STATUS[view.status] ?? ["idle", view.status];
  if (kind === "ok" && view.held_by && view.lag_ms > 1000) return ["warn", "late"];
  return [kind, words];
}

// The calls that a stopped view's message names: the engine knows which call repairs the view.
export function mends(view) {
  if (view.status !== "error") return [];
  return [...(view.message ?? "").matchAll(/(?:([^.;]*?), then )?(CALL headrace\.(\w+)\('(?:[^']|'')*'(?:, '…')?\))/g)].map(([, first, sql, verb]) =>
    [`${sql};`, first ? `first: ${first.trim()}` : verb === "resync_view" ? "rebuilds it from its tables" : "gives it another query"]);
}

// Calls that may be useful, by status.
export function remedies(view) {
  const name = literal(view.name);
  const call = (verb) => `CALL headrace.${verb}(${name});`;
  const out = [];
  out.push(...mends(view));
  if (view.status === "paused") out.push([call("resume_view"), "continues from its last position"]);
  if (view.cursor === "blocked") {
    out.push(["SELECT pid, query FROM pg_stat_activity WHERE pid = …;", "shows the session that locks the table (its process is named above)"]);
  }
  if (view.status === "running") {
    out.push([`SELECT * FROM headrace.verify_view(${name});`, "compares it with its query"]);
    out.push([call("pause_view"), "stops its updates, until resume_view"]);
  }
  out.push([`SELECT * FROM headrace.lag_history(${name});`, "shows its lag over the last week"]);
  out.push([`SELECT * FROM headrace.explain_view(${name});`, "shows its plan as text"]);
  return out;
}
