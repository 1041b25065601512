// The dataflow of a view: laid out by dagre, drawn as SVG, every node a button.
import { html, useMemo, useState, useEffect, useRef } from "./vendor/preact-htm.js";
import { Graph as Dag, layout } from "./vendor/dagre.js";
import { bytes, count, percent, rate } from "./words.js";

const W = 168, H = 72;

const ICONS = {
  Source: "M3 5c0-1.7 4-2.5 6-2.5s6 .8 6 2.5-4 2.5-6 2.5S3 6.7 3 5zm0 0v8c0 1.7 4 2.5 6 2.5s6-.8 6-2.5V5M3 9c0 1.7 4 2.5 6 2.5s6-.8 6-2.5",
  Sink: "M2.5 3h13v12h-13zM2.5 7h13M7 7v8",
  Join: "M7 4.5a4.500 4.5 0 1 0 0 9 4.5 4.500 0 0 0 0-9zM11 4.5a4.500 4.5 0 1 0 0 9 4.5 4.500 0 0 0 0-9z",
  Reduce: "M4 3h10l-6 6 6 6H4",
  Filter: "M2.5 3.500h13L10.500 9v6l-3-2V9z",
  TopK: "M3 15V9h3v6M8 15V3h3v12M13 15v-8h3v8",
  Window: "M2.5 3.500h13v11h-13zM6 3.5v11M12 3.5v11",
  Distinct: "M9 2.5l6.500 6.5L9 15.500 2.5 9z",
  Union: "M4 3v6a5 5 0 0 0 10 0V3",
};
const OTHER = "M3 9h11M10 5l4 4-4 4";

// Where everything is; edges go from input to node.
function laidOut(nodes, down) {
  const dag = new Dag();
  dag.setGraph({ rankdir: down ? "TB" : "LR", nodesep: down ? 22 : 16, ranksep: down ? 32 : 30, marginx: 8, marginy: 8 });
  dag.setDefaultEdgeLabel(() => ({}));
  for (const n of nodes) dag.setNode(n.id, { width: W, height: H });
  for (const n of nodes) for (const from of n.inputs) dag.setEdge(from, n.id);
  layout(dag);
  return {
    width: dag.graph().width || W, height: dag.graph().height || H,
    nodes: Object.fromEntries(nodes.map((n) => [n.id, dag.node(n.id)])),
    edges: dag.edges().map((e) => ({ from: e.v, to: e.w, points: dag.edge(e).points })),
  };
}

function curve(points) {
  const [a, ...rest] = points;
  let d = `M${a.x.toFixed(1)} ${a.y.toFixed(1)}`;
  for (let i = 0; i < rest.length - 1; i += 1) {
    const p = rest[i], q = rest[i + 1];
    const last = i === rest.length - 2;
    const x = last ? q.x : (p.x + q.x) / 2, y = last ? q.y : (p.y + q.y) / 2;
    d += `Q${p.x.toFixed(1)} ${p.y.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
  }
  if (rest.length === 1) d += `L${rest[0].x.toFixed(1)} ${rest[0].y.toFixed(1)}`;
  return d;
}

// The statistics of some seconds: what each node has done since the oldest snapshot that is kept.
export function rates(history) {
  const out = {};
  if (history.length < 2) return out;
  const [old, now] = [history[0], history[history.length - 1]];
  const seconds = now.at - old.at;
  if (seconds <= 0) return out;
  const before = new Map(old.stats.map((s) => [s.node, s]));
  for (const s of now.stats) {
    const b = before.get(s.node);
    if (!b || s.rows_out < b.rows_out || s.busy_us < b.busy_us) continue;
    out[s.node] = {
      rows_in: (s.rows_in - b.rows_in) / seconds,
      rows_out: (s.rows_out - b.rows_out) / seconds,
      busy: (s.busy_us - b.busy_us) / seconds / 1e6,
    };
  }
  return out;
}

function stateText(node, stat) {
  if (stat?.state_bytes != null) return bytes(stat.state_bytes);
  if (node.state_bytes != null) return `≈ ${bytes(node.state_bytes)}`;  // as the planner expects
  return node.state ? "state" : "no state";
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function titleOf(node) {
  if (node.kind === "Source") return (node.detail || "").split(" [")[0] || "table";
  if (node.kind === "Sink") return "result table";
  return node.detail || "";
}

function Box({ node, at, stat, live, share, chosen, choose }) {
  const lively = live && (live.rows_in > 0 || live.rows_out > 0);
  const words = `${node.kind} ${titleOf(node)}: ${live ? `${rate(live.rows_out)} rows per second, ${percent(live.busy)} busy` : "no figures yet"}, ${stateText(node, stat)}${node.shared_with ? ", shared" : ""}`;
  const key = (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose(node.id); } };
  return html`<g class=${`node ${node.kind === "Source" || node.kind === "Sink" ? "edge-node" : ""} ${chosen ? "chosen" : ""} ${lively ? "lively" : ""} ${node.shared_with ? "shared" : ""}`}
      transform=${`translate(${(at.x - W / 2).toFixed(1)} ${(at.y - H / 2).toFixed(1)})`}
      tabindex="0" role="button" aria-pressed=${chosen} aria-label=${words} onClick=${() => choose(node.id)} onKeyDown=${key}>
    <title>${words}</title>
    <rect class="box" width=${W} height=${H} rx="9" />
    <path class="icon" d=${ICONS[node.kind] ?? OTHER} transform="translate(10 9)" />
    <text class="kind" x="35" y="22">${cut(node.kind, 16)}</text>
    <text class="rate" x=${W - 11} y="22" text-anchor="end">${live ? `${rate(live.rows_out)}/s` : ""}</text>
    <text class="detail" x="11" y="42">${cut(titleOf(node), 22)}</text>
    <text class="state" x="11" y="60">${stateText(node, stat)}</text>
    <text class="busy" x=${W - 11} y="60" text-anchor="end">${live ? percent(live.busy) : ""}</text>
    <rect class="track" x="1" y=${H - 5} width=${W - 2} height="4" rx="2" />
    <rect class="load" x="1" y=${H - 5} width=${Math.max(0, Math.min(1, share ?? 0)) * (W - 2)} height="4" rx="2" />
  </g>`;
}

export function Dataflow({ graph, stats, live, chosen, choose }) {
  const [down, setDown] = useState(() => window.innerWidth < 960);
  useEffect(() => {
    const seen = () => setDown(window.innerWidth < 960);
    window.addEventListener("resize", seen);
    return () => window.removeEventListener("resize", seen);
  }, []);
  const place = useRef(null);
  const shape = JSON.stringify(graph.nodes.map((n) => [n.id, n.inputs]));
  const found = useMemo(() => laidOut(graph.nodes, down), [shape, down]);
  const byNode = new Map((stats ?? []).map((s) => [s.node, s]));
  const total = Object.values(live).reduce((sum, r) => sum + r.busy, 0);
  const most = Math.max(1, ...Object.values(live).map((r) => r.rows_out));
  // Arrow keys go along the edges.
  const walk = (e) => {
    const next = down ? "ArrowDown" : "ArrowRight", back = down ? "ArrowUp" : "ArrowLeft";
    if (e.key !== next && e.key !== back) return;
    const here = graph.nodes.find((n) => n.id === chosen);
    const to = e.key === back ? here?.inputs[0] : graph.nodes.find((n) => n.inputs.includes(chosen))?.id;
    if (!to) return;
    e.preventDefault();
    choose(to, true);
    [...place.current.querySelectorAll("g.node")][graph.nodes.findIndex((n) => n.id === to)]?.focus();
  };
  return html`<div class="flow" ref=${place} onKeyDown=${walk}>
    <svg viewBox=${`0 0 ${found.width} ${found.height}`} style=${{ width: "100%", maxWidth: `${found.width}px`, minWidth: `${Math.min(found.width, down ? 300 : Math.max(640, found.width * 0.74))}px` }}
        role="group" aria-label="Dataflow: from the tables to the result">
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0L8 4L0 8z" /></marker></defs>
      ${found.edges.map((e) => {
        const r = live[e.from]?.rows_out ?? 0;
        const width = r > 0 ? 1.4 + 2.6 * (Math.log1p(r) / Math.log1p(most)) : 1.2;
        return html`<path key=${`${e.from}>${e.to}`} class=${`wire ${r > 0 ? "flows" : ""}`} d=${curve(e.points)} style=${{ strokeWidth: width.toFixed(2) }} marker-end="url(#tip)" />`;
      })}
      ${graph.nodes.map((n) => html`<${Box} key=${n.id} node=${n} at=${found.nodes[n.id]} stat=${byNode.get(n.id)} live=${live[n.id]}
        share=${total > 0 && live[n.id] ? live[n.id].busy / total : 0} chosen=${chosen === n.id} choose=${choose} />`)}
    </svg></div>`;
}

export function NodeFacts({ node, stat, live, planned }) {
  const measured = new Set(["rows in", "rows out", "time", "worker", "shared with"]);
  const rows = [
    ["reads", node.inputs.join(", ") || "the stream"],
    ["rows in", live ? `${rate(live.rows_in)}/s` : "–", stat ? `${count(stat.rows_in)} in all` : ""],
    ["rows out", live ? `${rate(live.rows_out)}/s` : "–", stat ? `${count(stat.rows_out)} in all` : ""],
    ["time", live ? `${percent(live.busy)} of a processor` : "–", stat ? `${(stat.busy_us / 1e6).toFixed(1)} s in all` : ""],
    ["keeps", node.state || "nothing", node.state || stat?.state_bytes ? `${stateText(node, stat)}${stat?.state_rows != null ? `, ${count(stat.state_rows)} rows` : ""}` : ""],
    ["cost of a change", node.cost || "–"],
    ["worker", stat?.worker ?? "–"],
    ["shared with", node.shared_with ?? (stat?.shared ? "other views" : "no other view")],
  ].filter(([k]) => !planned || !measured.has(k));
  return html`<div class="facts node-facts" aria-live="polite">
    <h3>${node.kind} <code>${node.id}</code></h3>
    ${node.detail && html`<p class="detail">${node.detail}</p>`}
    <dl>${rows.map(([k, v, more]) => html`<div><dt>${k}</dt><dd>${v} ${more && html`<small>${more}</small>`}</dd></div>`)}</dl>
    ${node.columns && html`<details><summary>Columns</summary><p class="columns">${node.columns}</p></details>`}
  </div>`;
}
