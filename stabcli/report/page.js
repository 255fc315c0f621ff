// Charts to zoom into, over the data that the page holds; page_parts.js stands before it. All
// charts of a run share one range of steps and one cursor.

// Pixels above, below and right of the drawing, and a flag's width with its distance.
const TOP = 8, BOTTOM = 20, RIGHT = 10, FLAG = 26;
// Notices in view beyond which they get no flags.
const NOTICES = 8;

function start(host, run) {
  const pad = run.first === run.last ? 0.5 : 0;
  const whole = [run.first - pad, run.last + pad];
  const least = Math.min(whole[1] - whole[0], 4 * run.interval);
  let view = [...whole], cursor = null, active = null, waiting = false;
  const range = html("span", { class: "range" });
  const live = html("p", { class: "live", "aria-live": "polite" });
  const lane = html("div", { class: "flags" });
  const charts = run.charts.map(prepare).filter(Boolean);
  if (!charts.length) return;

  function prepare(data, index) {
    const figure = document.getElementById(data.id);
    const parts = data.parts.map((part) => decode(part, run.interval));
    const points = parts.flat();
    const bad = data.bad.map(([a, s, to, rows, l, what]) => ({ a, s, to, rows, l, what }));
    const stops = [...points, ...bad].sort((p, q) => p.s - q.s || p.a - q.a);
    if (!figure || !stops.length) return null;
    const plot = figure.querySelector(".plot");
    const label = plot.querySelector("svg").getAttribute("aria-label");
    fill(plot, {
      tabindex: "0", role: "group", "aria-roledescription": "chart", "aria-label": label,
      "aria-describedby": `${run.id}-help`,
    }, []);
    const reading = html("span", { class: "reading" });
    const chart = { ...data, index, figure, plot, parts, points, bad, stops, reading, scale: logarithm(points) };
    const log = button("log", `log scale of ${data.word}`, () => {
      chart.log = !chart.log;
      log.setAttribute("aria-pressed", chart.log);
      draw(chart);
    });
    log.setAttribute("aria-pressed", chart.log);
    figure.querySelector("figcaption").append(reading, log);
    listen(chart);
    new ResizeObserver(() => { if (plot.clientWidth !== chart.width) draw(chart); }).observe(plot);
    return chart;
  }

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; charts.forEach(draw); });
  }

  function show(low, high) {
    const span = clamp(high - low, least, whole[1] - whole[0]);
    const from = clamp((low + high - span) / 2, whole[0], whole[1] - span);
    view = [from, from + span];
    redraw();
  }
  function zoom(factor, at = (view[0] + view[1]) / 2) {
    show(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  }
  function pan(share) {
    const by = share * (view[1] - view[0]);
    const room = by < 0 ? Math.max(by, whole[0] - view[0]) : Math.min(by, whole[1] - view[1]);
    show(view[0] + room, view[1] + room);
  }
  function reset() {
    show(...whole);
  }

  function draw(chart) {
    const width = chart.plot.clientWidth;
    chart.width = width;
    if (width < 60) return;
    const height = chart.index ? 150 : 220, left = width < 500 ? 46 : 62;
    const inner = width - left - RIGHT, deep = height - TOP - BOTTOM;
    const x = (s) => left + (s - view[0]) / (view[1] - view[0]) * inner;
    const seen = chart.parts.map((p) => p.slice(Math.max(0, bound(p, view[0]) - 1), bound(p, view[1] + 1e-9) + 1));
    const inside = seen.flat().filter((p) => p.s >= view[0] && p.s <= view[1]);
    const { to } = chart.log ? chart.scale : { to: (v) => v };
    const shown = (inside.length ? inside : seen.flat()).map((p) => to(clamp(p.v, -1e300, 1e300)));
    let low = shown.reduce((m, v) => Math.min(m, v), Infinity);
    let high = shown.reduce((m, v) => Math.max(m, v), -Infinity);
    if (!shown.length) [low, high] = [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.01 || 1;
    [low, high] = [low - room, high + room];
    const y = (v) => TOP + (high - to(v)) / (high - low) * deep;
    Object.assign(chart, { x, y, left, inner, deep, height });

    const back = svg("g"), data = svg("g", { "clip-path": `url(#${chart.id}-clip)` });
    for (const v of levels(chart, low, high, chart.index ? 4 : 5)) {
      back.append(svg("line", { class: "gridline", x1: left, x2: width - RIGHT, y1: y(v), y2: y(v) }));
      back.append(svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, level(v)));
    }
    for (const s of ticks(view[0], view[1], inner / 90, 1)) {
      const anchor = x(s) > width - 40 ? "end" : x(s) < left + 20 ? "start" : "middle";
      back.append(svg("text", { x: x(s), y: height - 5, "text-anchor": anchor }, count(s)));
      back.append(svg("line", { class: "gridline", x1: x(s), x2: x(s), y1: TOP, y2: TOP + deep }));
    }
    back.append(svg("line", { class: "axis", x1: left, x2: width - RIGHT, y1: TOP + deep, y2: TOP + deep }));
    for (const m of run.marks) {
      if (!m.band || m.last < view[0] || m.first > view[1]) continue;
      const wide = Math.max(2, x(m.last) - x(m.first));
      data.append(svg("rect", { class: `band ${m.sev}`, x: x(m.first), y: TOP, width: wide, height: deep }));
    }
    let written = -100;
    for (const [a, s] of run.attempts.slice(1)) {
      if (s < view[0] || s > view[1]) continue;
      data.append(svg("line", { class: "restart", x1: x(s), x2: x(s), y1: TOP, y2: TOP + deep }));
      if (!chart.index && x(s) - written > 80) {
        written = x(s);
        const end = x(s) > width - 90;
        data.append(svg("text", { x: x(s) + (end ? -4 : 4), y: TOP + 10, "text-anchor": end ? "end" : "start" }, `attempt ${a}`));
      }
    }
    data.setAttribute("stroke-width", inside.length > inner ? 1 : 1.5);
    for (const part of seen) {
      const paths = { line: "", "line old": "" };
      part.forEach((p, k) => {
        const kind = p.old ? "line old" : "line", before = part[k - 1];
        const at = `${x(p.s).toFixed(1)},${y(p.v).toFixed(1)}`;
        const joined = before && !p.gap;
        if (joined && before.old !== p.old) paths[kind] += `M${x(before.s).toFixed(1)},${y(before.v).toFixed(1)}`;
        paths[kind] += (joined ? "L" : "M") + at;
      });
      for (const [kind, d] of Object.entries(paths)) if (d) data.append(svg("path", { class: kind, d }));
    }
    if (inside.length < inner / 9)
      for (const p of inside) data.append(svg("circle", { class: p.old ? "dot old" : "dot", cx: x(p.s), cy: y(p.v), r: 2.6 }));
    const floor = TOP + deep - 6;
    for (const b of chart.bad) {
      if (b.to < view[0] || b.s > view[1]) continue;
      if (x(b.to) - x(b.s) > 3) data.append(svg("line", { class: "broken", x1: x(b.s), x2: x(b.to), y1: floor + 5, y2: floor + 5 }));
      data.append(svg("path", { class: "cross", d: `M${x(b.s) - 4},${floor - 4}l8,8m0,-8l-8,8` }));
    }
    chart.over = svg("g");
    const clip = svg("clipPath", { id: `${chart.id}-clip` }, svg("rect", { x: left - 3, y: TOP - 3, width: inner + 6, height: deep + 5 }));
    const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, clip, back, data, chart.over);
    chart.tip = html("div", { class: "tip", hidden: "" });
    chart.plot.replaceChildren(image, chart.tip);
    if (chart === charts[0]) place(chart);
    point(chart);
  }

  // Flags of the incidents in view, the gravest first; those that would overlap wait for a zoom.
  function place(chart) {
    const rows = [[], []], inView = run.marks.filter((m) => m.last >= view[0] && m.first <= view[1]);
    const quiet = inView.filter((m) => m.sev === "notice").length > NOTICES;
    let hidden = 0;
    lane.replaceChildren();
    for (const m of inView) {
      if (quiet && m.sev === "notice") { hidden++; continue; }
      const at = clamp(chart.x(m.first), chart.left, chart.left + chart.inner);
      const row = rows.findIndex((taken) => taken.every((t) => Math.abs(t - at) >= FLAG));
      if (row < 0) { hidden++; continue; }
      rows[row].push(at);
      const said = `incident ${m.n}: ${m.sev} ${m.rule}, step ${count(m.first)}`;
      const flag = html("a", { class: `flag ${m.sev}`, href: `#${m.id}`, "aria-label": said, title: said }, String(m.n));
      flag.style.left = `${at / chart.width * 100}%`; // of the drawing, which paper scales
      flag.style.top = `${row * FLAG}px`;
      lane.append(flag);
    }
    lane.style.height = `${rows.filter((r) => r.length).length * FLAG}px`;
    const all = view[0] <= whole[0] && view[1] >= whole[1];
    const waits = hidden ? `; ${hidden} more flags: zoom in` : "";
    range.textContent = `steps ${count(view[0])} to ${count(view[1])}${all ? ", the whole run" : ""}${waits}`;
  }

  // What stands at the cursor: the nearest stop, by both directions where a pointer gives them.
  function nearest(chart, s, atY) {
    const px = (p) => chart.x(clamp(s, p.s, p.to ?? p.s)) - chart.x(s);
    const py = (p) => atY === undefined ? 0 : (p.what ? chart.height - BOTTOM : chart.y(p.v)) - atY;
    const list = chart.stops, reach = 12 * (view[1] - view[0]) / chart.inner;
    let from = bound(list, s - reach), to = bound(list, s + reach);
    if (from === to) { from = Math.max(0, from - 1); to = Math.min(list.length, to + 1); }
    const near = list.slice(from, to);
    near.push(...chart.bad.filter((b) => b.s <= s && b.to >= s));
    let best = null, least = Infinity;
    for (const p of near) {
      const far = Math.hypot(px(p) * 3, py(p));
      if (far <= least) { least = far; best = p; }
    }
    return best;
  }

  const where = (p) => p.l === null || p.l === undefined ? "" : p.f ? `${p.f}:${p.l}` : `line ${count(p.l)}`;
  const steps = (p) => p.what && p.to > p.s ? `steps ${count(p.s)} to ${count(p.to)}` : `step ${count(p.s)}`;
  const value = (p) => p.what ? `${p.what}${p.rows > 1 ? ` in ${count(p.rows)} rows` : ""}` : number(p.v);
  const around = (s) => run.marks.filter((m) => s >= m.first && s <= m.last);
  function told(chart, p) {
    const lines = [`${chart.word} ${value(p)}`, steps(p), where(p)];
    if (run.attempts.length > 1) lines.push(`attempt ${p.a}${p.old ? ", taken back later" : ""}`);
    for (const m of around(p.s).slice(0, 3)) if (m.a === p.a) lines.push(`incident ${m.n}: ${m.sev} ${m.rule}`);
    return lines.filter(Boolean);
  }

  // Draw the cursor of one chart, and tell what is at it.
  function point(chart) {
    if (!chart.over) return;
    chart.over.replaceChildren();
    chart.tip.hidden = true;
    chart.reading.textContent = "";
    if (!cursor) return;
    const p = chart === active ? cursor : nearest(chart, cursor.s);
    if (!p) return;
    const at = chart.x(cursor.s);
    if (at < chart.left - 1 || at > chart.left + chart.inner + 1) return;
    chart.over.append(svg("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: TOP + chart.deep }));
    chart.reading.textContent = [value(p), steps(p), where(p)].filter(Boolean).join(" · ");
    if (!p.what) chart.over.append(svg("circle", { class: "chosen", cx: chart.x(p.s), cy: chart.y(p.v), r: 4 }));
    if (chart !== active) return;
    chart.tip.replaceChildren(...told(chart, p).map((line) => html("div", {}, line)));
    chart.tip.hidden = false;
    const side = at > chart.left + chart.inner / 2;
    chart.tip.style.left = `${side ? Math.max(0, at - chart.tip.offsetWidth - 12) : at + 12}px`;
    chart.tip.style.top = `${clamp(p.what ? chart.deep : chart.y(p.v), 0, chart.deep - 60)}px`;
  }
  function move(chart, p, speak) {
    [active, cursor] = [chart, p];
    charts.forEach(point);
    if (speak && p) live.textContent = told(chart, p).join(", ");
  }
  const go = (anchor) => { location.hash = anchor; };

  function listen(chart) {
    const { plot } = chart, fingers = new Map();
    let drag = null;
    const spot = (e) => {
      const box = plot.getBoundingClientRect(), at = e.clientX - box.left;
      const share = clamp((at - chart.left) / chart.inner, 0, 1);
      return { at, s: view[0] + share * (view[1] - view[0]), y: e.clientY - box.top };
    };
    plot.addEventListener("pointerdown", (e) => {
      if (e.button) return;
      fingers.set(e.pointerId, spot(e));
      if (e.pointerType !== "touch") plot.setPointerCapture(e.pointerId);
      drag = e.pointerType === "touch" ? null : { from: spot(e), pan: e.shiftKey, view: [...view] };
      const p = nearest(chart, spot(e).s, spot(e).y);
      if (p) move(chart, p);
    });
    plot.addEventListener("pointermove", (e) => {
      const now = spot(e), before = fingers.get(e.pointerId);
      if (before && fingers.size === 2) {
        const other = [...fingers].find(([id]) => id !== e.pointerId)[1];
        const was = Math.abs(before.at - other.at), is = Math.abs(now.at - other.at);
        if (was > 8 && is > 8) zoom(was / is, (now.s + other.s) / 2);
        fingers.set(e.pointerId, now);
      } else if (drag?.pan) {
        const by = (drag.from.at - now.at) / chart.inner * (drag.view[1] - drag.view[0]);
        show(drag.view[0] + by, drag.view[1] + by);
      } else if (drag && Math.abs(now.at - drag.from.at) > 4) {
        const [a, b] = [drag.from.s, now.s].sort((m, n) => m - n);
        const size = { x: chart.x(a), y: TOP, width: chart.x(b) - chart.x(a), height: chart.deep };
        chart.tip.hidden = true;
        chart.over.replaceChildren(svg("rect", { class: "selection", ...size }));
      } else {
        const p = nearest(chart, now.s, now.y);
        if (p) move(chart, p);
      }
    });
    const up = (e) => {
      fingers.delete(e.pointerId);
      const done = drag, now = spot(e);
      drag = null;
      if (e.type === "pointerup" && done && !done.pan && Math.abs(now.at - done.from.at) > 4)
        show(...[done.from.s, now.s].sort((m, n) => m - n));
    };
    plot.addEventListener("pointerup", up);
    plot.addEventListener("pointercancel", up);
    plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) move(null, null); });
    plot.addEventListener("blur", () => move(null, null));
    plot.addEventListener("dblclick", reset);
    plot.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey && document.activeElement !== plot) return;
      e.preventDefault();
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan((e.deltaX || e.deltaY) / 800);
      else zoom(Math.exp(clamp(e.deltaY, -300, 300) / 400), spot(e).s);
    }, { passive: false });
    plot.addEventListener("keydown", (e) => { if (press(chart, e)) e.preventDefault(); });
  }

  function press(chart, e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return false;
    const list = chart.stops, at = cursor && active === chart ? list.indexOf(cursor) : -1;
    const to = (index) => {
      const p = list[clamp(index, 0, list.length - 1)], span = view[1] - view[0];
      if (p.s < view[0] || p.s > view[1]) show(p.s - span / 2, p.s + span / 2);
      move(chart, p, true);
    };
    const first = bound(list, view[0]), last = Math.max(0, bound(list, view[1] + 1e-9) - 1);
    const middle = cursor ? cursor.s : (view[0] + view[1]) / 2;
    const marks = run.marks.filter((m) => m.band).sort((m, n) => m.first - n.first);
    const jump = (m) => { if (m) to(bound(list, m.first)); };
    const keys = {
      ArrowRight: () => e.shiftKey ? pan(0.2) : to(at < 0 ? first : at + 1),
      ArrowLeft: () => e.shiftKey ? pan(-0.2) : to(at < 0 ? last : at - 1),
      Home: () => to(0), End: () => to(list.length - 1),
      "+": () => zoom(0.5, middle), "=": () => zoom(0.5, middle), "-": () => zoom(2, middle),
      0: reset, Escape: reset,
      n: () => jump(marks.find((m) => m.first > (cursor ? cursor.s : -Infinity)) || marks[0]),
      p: () => jump(marks.findLast((m) => m.first < (cursor ? cursor.s : Infinity)) || marks.at(-1)),
      Enter: () => { const m = cursor && around(cursor.s)[0]; if (m) go(m.id); },
    };
    if (!Object.hasOwn(keys, e.key)) return false;
    keys[e.key]();
    return true;
  }

  const tools = html("div", { class: "tools", role: "toolbar", "aria-label": "Zoom" },
    button("+", "zoom in", () => zoom(0.5)), button("\u2212", "zoom out", () => zoom(2)),
    button("\u25c0", "earlier steps", () => pan(-0.4)), button("\u25b6", "later steps", () => pan(0.4)),
    button("whole run", "show the whole run", reset), range);
  const help = html("p", { class: "help", id: `${run.id}-help` },
    "Drag to zoom, double-click for the whole run; the wheel zooms with Ctrl, or once a chart is clicked. "
    + "Keys: arrows to read, + and \u2212 to zoom, Shift and arrows to move, n and p for incidents, Enter for their explanation, 0 for the whole run.");
  charts[0].figure.before(tools, live);
  charts[0].plot.before(lane);
  host.append(help);
  for (const link of document.querySelectorAll("[data-show]")) {
    if (!link.closest(`[id="${run.id}"]`)) continue;
    link.addEventListener("click", () => {
      const m = run.marks.find((mark) => mark.n === Number(link.dataset.show));
      if (!m) return reset();
      const around = Math.max((m.last - m.first) * 1.5, 30 * run.interval);
      show(m.first - around, m.last + around);
    });
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
for (const host of document.querySelectorAll("[data-run]")) {
  const run = data.runs.find((r) => r.id === host.dataset.run);
  if (run) start(host, run);
}

for (const box of document.querySelectorAll("[data-copy]")) {
  const code = document.getElementById(box.dataset.copy);
  const copy = button("copy", "copy these lines", async () => {
    try { await navigator.clipboard.writeText(code.textContent); copy.textContent = "copied"; } catch {
      getSelection().selectAllChildren(code);
      copy.textContent = "selected";
    }
    setTimeout(() => { copy.textContent = "copy"; }, 2000);
  });
  box.append(copy);
}

// What a link leads to may be folded away.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  target.scrollIntoView();
  target.focus({ preventScroll: true });
}
addEventListener("hashchange", reveal);
reveal();
addEventListener("beforeprint", () => { for (const box of document.querySelectorAll("details")) box.open = true; });
