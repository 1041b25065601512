// All views in one chart: the worst few are coloured and named, the others grey.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { link, ms } from "./words.js";

const SECONDS = 900, GAP_S = 35, WORST = 5, NEAR = 36;
const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 22;
const TICKS = [1, 10, 100, 1e3, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 3.6e8];
const METRICS = { p99: ["p99", (p) => p[2]], lag: ["lag", (p) => p[3]] };

const two = (n) => String(n).padStart(2, "0");
const time = (at, seconds) => { const t = new Date(at * 1000); return `${two(t.getHours())}:${two(t.getMinutes())}${seconds ? `:${two(t.getSeconds())}` : ""}`; };

// Lines, the worst first: {name, points: [[at, ms]], worst}.
export function lines(samples, value, now) {
  return Object.entries(samples).map(([name, points]) => {
    const shown = points.filter((p) => p[0] >= now - SECONDS && value(p) != null).map((p) => [p[0], Math.max(1, value(p))]);
    return { name, points: shown, worst: Math.max(0, ...shown.map((p) => p[1])) };
  }).filter((line) => line.points.length).sort((a, b) => b.worst - a.worst || (a.name < b.name ? -1 : 1));
}

function scales(all, now, width, height) {
  // From the first sample on, if the engine is young.
  const first = Math.min(...all.map((line) => line.points[0][0]));
  const seconds = Math.min(SECONDS, Math.max(120, now - first + 10));
  const top = Math.max(100, ...all.map((line) => line.worst)) * 1.3;
  const low = 10 ** Math.floor(Math.log10(all.reduce((least, line) => line.points.reduce((so, p) => Math.min(so, p[1]), least), 1e3)));
  const x = (at) => LEFT + ((at - now + seconds) / seconds) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - (Math.log(value / low) / Math.log(top / low)) * (height - TOP - BOTTOM);
  return { x, y, seconds, ticks: (top / low > 40 ? TICKS : [...TICKS, 20, 50, 200, 500, 2e3, 5e3, 2e4].sort((a, b) => a - b)).filter((t) => t >= low && t <= top) };
}

function path(points, { x, y }) {
  return points.map((p, i) => {
    const begins = !i || p[0] - points[i - 1][0] > GAP_S;
    // A line of no length is a dot: so a sample without neighbours is seen as well.
    return `${begins ? "M" : "L"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}${begins ? "h0" : ""}`;
  }).join("");
}

function useWidth(place) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const fit = new ResizeObserver(() => setWidth(place.current?.clientWidth ?? 0));
    fit.observe(place.current);
    return () => fit.disconnect();
  }, []);
  return width;
}

function nearest(all, scale, px, py) {
  let found = null, best = NEAR;
  for (const line of all) {
    for (const p of line.points) {
      const dx = Math.abs(scale.x(p[0]) - px);
      if (dx > 14) continue;
      const far = Math.hypot(dx, scale.y(p[1]) - py);
      if (far < best) { best = far; found = { line, at: p[0], value: p[1] }; }
    }
  }
  return found;
}

export function Fleet({ samples, now }) {
  const place = useRef(null), width = useWidth(place);
  const [metric, setMetric] = useState("p99");
  const [near, setNear] = useState(null);
  const height = width < 560 ? 190 : 230;
  const all = useMemo(() => lines(samples, METRICS[metric][1], now), [samples, metric]);
  const scale = scales(all, now, width, height);
  const named = all.slice(0, WORST), others = all.length - named.length;
  const drawn = useMemo(() => (width ? html`
    ${scale.ticks.map((t) => html`<g key=${t} class="tick"><line x1=${LEFT} x2=${width - RIGHT} y1=${scale.y(t)} y2=${scale.y(t)} /><text x=${LEFT - 8} y=${scale.y(t) + 4} text-anchor="end">${t < 1000 ? `${t} ms` : ms(t)}</text></g>`)}
    ${[0, 1, 2, 3].map((i) => { const step = scale.seconds > 450 ? 300 : 60, at = Math.floor(now / step - i) * step; return html`<text key=${i} class="at" x=${scale.x(at)} y=${height - 5} text-anchor="middle">${scale.x(at) > LEFT + 14 && scale.x(at) < width - 20 ? time(at) : ""}</text>`; })}
    <path class="others" d=${all.slice(WORST).map((line) => path(line.points, scale)).join("")} />
    ${[...named].reverse().map((line) => html`<path key=${line.name} class=${`worst c${all.indexOf(line) + 1}`} d=${path(line.points, scale)} />`)}` : null), [all, width, height]);
  const point = (e) => {
    const box = e.currentTarget.getBoundingClientRect();
    setNear(nearest(all, scale, e.clientX - box.left, e.clientY - box.top));
  };
  const open = () => { if (near && matchMedia("(hover: hover)").matches) location.hash = link(near.line.name); };
  return html`<section class="panel fleet" aria-labelledby="fleet"><header><h2 id="fleet">Freshness of all views</h2>
      <div class="choice" role="group" aria-label="Figure">${Object.entries(METRICS).map(([id, [words]]) => html`<button type="button" key=${id} aria-pressed=${id === metric} onClick=${() => { setMetric(id); setNear(null); }}>${words}</button>`)}</div></header>
    <div ref=${place}>${all.length ? html`<svg class="lines" width=${width} height=${height} viewBox=${`0 0 ${width || 1} ${height}`} role="img"
        aria-label=${`${METRICS[metric][0]} of ${all.length} views over 15 minutes; the worst is ${named[0].name} with ${ms(named[0].worst)}`}
        onPointerMove=${point} onPointerDown=${point} onPointerLeave=${(e) => { if (e.pointerType === "mouse") setNear(null); }} onClick=${open}>
        ${drawn}
        ${near && html`<path class="near" d=${path(near.line.points, scale)} /><circle class="near-dot" cx=${scale.x(near.at)} cy=${scale.y(near.value)} r="4" />`}</svg>`
      : html`<p class="quiet">Nothing was written, and nothing lagged, in the last 15 minutes.</p>`}</div>
    ${all.length > 0 && html`<ul class="named" aria-label="The worst views">
      ${named.map((line, i) => html`<li key=${line.name}><i class=${`c${i + 1}`}></i><a href=${link(line.name)}>${line.name}</a> <small>${ms(line.worst)}</small></li>`)}
      ${others > 0 && html`<li><i class="others"></i><span class="quiet">${others === 1 ? "one more view" : `${others} more views`}</span></li>`}</ul>
      <output class="near-name" aria-live="polite">${near ? html`<a href=${link(near.line.name)}>${near.line.name}</a> ${ms(near.value)} at ${time(near.at, true)}` : html`<span class="quiet">Point at a line to see its name. Worst of 15 minutes, from commit to visible.</span>`}</output>`}
  </section>`;
}
