"use strict";
// Parts of the page's script: nodes, numbers, decoding, scales. Text from logs only ever becomes
// text nodes: nothing here or in page.js parses markup.

const NS = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(NS, tag), attributes, children);
const html = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const button = (text, label, act) => {
  const made = html("button", { type: "button", "aria-label": label, title: label }, text);
  made.addEventListener("click", act);
  return made;
};

function number(v) {
  const size = Math.abs(v);
  if (size && (size >= 1e7 || size < 1e-5)) return v.toExponential(3).replace(/\.?0+e\+?/, "e");
  if (size >= 1e4) return v.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return String(Number(v.toPrecision(5)));
}
// The same for an axis, where there is little room.
function level(v) {
  const size = Math.abs(v);
  if (size >= 1e15 || (size && size < 1e-3)) return v.toExponential(3).replace(/\.?0+e\+?/, "e");
  for (const [by, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (size >= 10 * by || (size >= by && by > 1e3)) return Number((v / by).toPrecision(4)) + unit;
  return number(v);
}
const count = (n) => Math.round(n).toLocaleString("en-US");
const clamp = (v, low, high) => Math.min(high, Math.max(low, v));

// First index whose step is not below s.
function bound(list, s) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].s < s) low = middle + 1; else high = middle;
  }
  return low;
}

// Points of one attempt: step, value, line, file, attempt, whether it was taken back.
function decode(part, interval) {
  const gaps = new Set(part.g), files = part.f || [], wrong = new Map();
  const lines = part.l;
  if (lines) for (let k = 1; k < lines.length; k += 2) wrong.set(lines[k], lines[k + 1]);
  let step = 0, line = lines ? lines[0] : null, file = null, next = 0;
  return part.v.map((v, k) => {
    const by = part.s[k];
    step += by;
    if (lines && k) line += Math.floor(by / interval) + (wrong.get(k) || 0);
    if (next < files.length && files[next][0] === k) file = files[next++][1];
    return { s: step, v, l: line, f: file, a: part.a, gap: gaps.has(k), old: k >= (part.d ?? Infinity) };
  });
}

function ticks(low, high, most, least = 0) {
  const raw = Math.max((high - low) / most, least, 1e-300);
  const base = 10 ** Math.floor(Math.log10(raw));
  const by = [1, 2, 5, 10].map((m) => m * base).find((m) => m >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / by - 1e-9); k * by <= high + by * 1e-9 && found.length < 50; k++)
    found.push(Number((k * by).toPrecision(12)));
  return found;
}

// A logarithmic scale; where values are not all positive, one that is linear around zero.
function logarithm(points) {
  const sizes = points.map((p) => Math.abs(p.v)).filter((v) => v > 0).sort((a, b) => a - b);
  const positive = sizes.length === points.length && points.every((p) => p.v > 0);
  const unit = (sizes[sizes.length >> 1] || 1) / 100;
  const to = positive ? Math.log10 : (v) => Math.sign(v) * Math.log10(1 + Math.abs(v) / unit);
  const from = positive ? (t) => 10 ** t : (t) => Math.sign(t) * (10 ** Math.abs(t) - 1) * unit;
  return { to, from };
}

function levels(chart, low, high, most) {
  if (!chart.log) return ticks(low, high, most);
  const { from, to } = chart.scale, found = [];
  const bottom = from(low), top = from(high);
  const first = Math.floor(Math.log10(Math.max(Math.min(Math.abs(bottom), Math.abs(top)), 1e-300)));
  const last = Math.ceil(Math.log10(Math.max(Math.abs(bottom), Math.abs(top), 1e-300)));
  if (bottom > 0 && last - first > 1) {
    const every = Math.ceil((last - first) / most);
    for (let e = first; e <= last; e += every) found.push(10 ** e);
  } else if (bottom > 0) return ticks(bottom, top, most);
  else for (const t of ticks(low, high, most)) found.push(Number(from(t).toPrecision(1)));
  return [...new Set(found)].filter((v) => to(v) >= low && to(v) <= high);
}
