"use strict";
const E = JSON.parse(document.getElementById("episode").textContent);
const $ = id => document.getElementById(id);
const T = E.active.length, K = E.ticks[0].length, I = E.intervals, MS = E.interval_us / 1e3;
let now = 0, port = E.axes.port, timer = null;

// Colours: the same scale as the pictures that render() draws.
const dark = matchMedia("(prefers-color-scheme: dark)");
function level(q, low, high) {
  if (q < E.empty) return 0;
  if (q < low) return q / Math.max(low, 1);
  if (q < high) return 1 + (q - low) / Math.max(high - low, 1);
  return Math.min(2 + (q - high) / Math.max(high, 1), E.colours[E.colours.length - 1][0]);
}
function rgb(hex) { return [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)); }
function colour(x) {
  const stops = dark.matches ? E.dark_colours : E.colours;
  let i = stops.length - 2;
  while (i > 0 && stops[i][0] > x) i--;
  const [a, from] = stops[i], [b, to] = stops[i + 1];
  const w = b > a ? Math.min(Math.max((x - a) / (b - a), 0), 1) : 1, end = rgb(to);
  return `rgb(${rgb(from).map((c, j) => Math.round(c + w * (end[j] - c))).join(",")})`;
}
function draw(tag, parent, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}
function number(x, digits = 1) {
  return x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
// Width of a picture in pixels: one unit is one pixel, so letters keep their size. A hidden page has no width.
function widthOf(svg) { return Math.max(Math.round(svg.getBoundingClientRect().width), 280); }

// Network.
let links = [];
function network() {
  const svg = $("network"), W = widthOf(svg), rows = new Set(E.nodes.map(n => n.y)).size;
  const H = Math.min(W * (rows === 2 ? .42 : rows === 3 ? .6 : .8), rows === 2 ? 260 : rows === 3 ? 340 : 420);
  const ys = E.nodes.map(n => n.y), [low, high] = [Math.min(...ys), Math.max(...ys)];
  const X = x => 14 + x * (W - 28), Y = y => H - 28 - (y - low) / Math.max(high - low, .01) * (H - 48);
  const hosts = E.nodes.filter(n => n.host).length, ring = rows > 3 && E.nodes.length === hosts + 1;
  const crowded = E.nodes.length > 60 || (!ring && W / hosts < 16);
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.replaceChildren();
  const wide = E.ports.length > 64 ? 0.45 : W < 420 ? 0.75 : 1;
  links = E.ports.map((p, i) => {
    let [x1, y1, x2, y2] = [X(p.line[0]), Y(p.line[1]), X(p.line[2]), Y(p.line[3])];
    if (p.kind !== "host") {  // the two directions of a link lie side by side
      const gap = 3 * wide / Math.hypot(x2 - x1, y2 - y1), [right, down] = [gap * (y1 - y2), gap * (x2 - x1)];
      [x1, y1, x2, y2] = [x1 + right, y1 + down, x2 + right, y2 + down];
    }
    const group = draw("g", svg, { class: "port", tabindex: 0, role: "button", "data-port": i });
    const ends = { x1, y1, x2, y2, "stroke-linecap": "round" };
    draw("line", group, { ...ends, class: "halo", stroke: "transparent", "stroke-width": 20 * wide });
    const line = draw("line", group, { ...ends, class: "link" });
    const cx = x1 + 0.7 * (x2 - x1), cy = y1 + 0.7 * (y2 - y1);
    const mark = draw("rect", group, { style: "fill:var(--ink);stroke:var(--card)", "stroke-width": 1,
      transform: `translate(${cx} ${cy}) rotate(45)` });
    const title = draw("title", group, {});
    group.addEventListener("click", () => choose(i));
    group.addEventListener("keydown", e => {
      if (e.key === "Enter") choose(i);
    });
    return { group, line, mark, title, wide };
  });
  for (const n of E.nodes) {
    const x = X(n.x), y = Y(n.y);
    if (n.host) {
      draw("circle", svg, { cx: x, cy: y, r: crowded ? 2 : 5, style: "fill:var(--host)" });
      if (!crowded) draw("text", svg, { x, y: y + (ring && n.y >= .5 ? -10 : 18), "text-anchor": "middle" },
        n.name.replace(/^host/, ""));
    } else if (crowded) {
      draw("rect", svg, { x: x - 5, y: y - 5, width: 10, height: 10, style: "fill:var(--switch)" });
    } else {
      const w = 14 + 7 * n.name.length;
      draw("rect", svg, { x: x - w / 2, y: y - 12, width: w, height: 24, rx: 5, style: "fill:var(--switch)" });
      draw("text", svg, { x, y: y + 4, "text-anchor": "middle", style: "fill:var(--on-switch)" }, n.name);
    }
  }
  const steps = [["empty", 0, 0], ["below Kmin", .02, 1], ["Kmin to Kmax", 1.001, 2], ["above Kmax", 2.001, 2.5]];
  $("key").innerHTML = "<span>queue:</span>" + steps.map(([name, a, b]) =>
    `<span><i style="background:linear-gradient(90deg,${colour(a)},${colour(b - .001)})"></i>${name}</span>`)
    .join("") + "<span><b>◆</b> share of bytes marked</span>";
}
function paintNetwork() {
  links.forEach((link, p) => {
    const q = I.queue[now][p], full = level(q, I.kmin[now][p], I.kmax[now][p]);
    link.line.setAttribute("stroke", colour(full));
    link.line.setAttribute("stroke-width", link.wide * (3 + 3.4 * full));
    const marked = I.marked[now][p], size = marked > 1e-3 ? link.wide * (4 + 10 * Math.sqrt(marked)) : 0;
    for (const [name, value] of [["x", -size / 2], ["y", -size / 2], ["width", size], ["height", size]])
      link.mark.setAttribute(name, value);
    link.title.textContent = `${E.ports[p].name}: queue ${number(q / 1e3)} KB, ` +
      `${number(100 * marked)} % marked`;
    link.group.classList.toggle("chosen", p === port);
  });
}

// Plots over time: frame() draws the axes of one and returns the places of times and values.
const LEFT = 58, RIGHT = 12;
const LOG_FROM = 10;  // KB; the axis of queues is linear below and logarithmic above
const scales = {
  linear: { to: v => v, ticks: (low, top, n) => niceSteps(low, top, n) },
  queue: { to: v => v <= LOG_FROM ? v / LOG_FROM / 2 : .5 + Math.log10(v / LOG_FROM),
    ticks: (low, top) => [0, 10, 100, 1e3, 1e4, 1e5, 1e6].filter(v => v <= top) },
  log: { to: v => Math.log10(Math.max(v, .9)), ticks: (low, top) => [1, 2, 5, 10, 20, 50, 100, 1e3, 1e4]
    .filter(v => v <= top && (top < 20 || Math.log10(v) % 1 === 0)) },
};
function niceSteps(low, top, wanted) {
  const raw = (top - low) / wanted, power = 10 ** Math.floor(Math.log10(raw)), ticks = [];
  const step = [1, 2, 5, 10].find(m => m * power >= raw * .999) * power;
  for (let v = Math.ceil(low / step - 1e-6) * step; v <= top + 1e-6 * step; v += step) ticks.push(v || 0);  // never -0
  return ticks;
}
const cursors = [];
function frame(id, { height, low = 0, top, scale = "linear", label, times = true, phases = "", steps = 4 }) {
  const svg = $(id), W = widthOf(svg), base = height - (times ? 34 : 10);
  const named = phases === "named" && E.phases.length > 1, head = named ? 38 : 22;
  const { to, ticks } = scales[scale], [a, b] = [to(low), to(top)];
  const px = ms => LEFT + ms / (T * MS) * (W - LEFT - RIGHT);
  const py = v => base - (to(v) - a) / (b - a || 1) * (base - head);
  svg.setAttribute("viewBox", `0 0 ${W} ${height}`);
  svg.replaceChildren();
  if (phases && E.phases.length > 1) phaseBands(svg, px, head, base, named);
  const digits = top - low < 1 ? 4 : 10;
  for (const v of ticks(low, top, steps)) {
    draw("line", svg, { x1: LEFT, x2: W - RIGHT, y1: py(v), y2: py(v), style: "stroke:var(--grid)" });
    draw("text", svg, { x: LEFT - 7, y: py(v) + 4, "text-anchor": "end" },
      v.toLocaleString("en", { maximumSignificantDigits: digits }));
  }
  draw("text", svg, { x: 4, y: 13 }, label);
  for (const v of niceSteps(0, T * MS, W < 420 ? 5 : 8)) {
    draw("line", svg, { x1: px(v), x2: px(v), y1: base, y2: base + 4, style: "stroke:var(--ink)" });
    if (times) draw("text", svg, { x: px(v), y: base + 17, "text-anchor": "middle" },
      v.toLocaleString("en", { maximumSignificantDigits: 4 }));
  }
  if (times) draw("text", svg, { x: W - RIGHT, y: height - 3, "text-anchor": "end" }, "time, ms");
  draw("line", svg, { x1: LEFT, x2: W - RIGHT, y1: base, y2: base, style: "stroke:var(--ink)" });
  const cursor = draw("rect", svg, { y: head, height: base - head, width: Math.max(px(MS) - px(0), 2),
    style: "fill:var(--now);stroke:var(--now)", "fill-opacity": .18, "stroke-opacity": .7 });
  cursors.push({ cursor, px });
  svg.onclick = e => {
    const x = e.clientX - svg.getBoundingClientRect().left;
    seek(Math.floor((x - LEFT) / (W - LEFT - RIGHT) * T));
  };
  return { svg, px, py, W };
}
// Phases of the traffic to the chosen port, as tinted bands; their names above.
function phaseBands(svg, px, top, base, named) {
  for (let t = 0, from = 0; t < T; t++) {
    const phase = E.phase[t][port];
    if (t + 1 < T && E.phase[t + 1][port] === phase) continue;
    const [x1, x2] = [px(from * MS), px((t + 1) * MS)], name = E.phases[phase];
    const style = `fill:var(--phase-${phase % 4})`, fits = x2 - x1 > 7 * name.length + 6;
    draw("rect", svg, { x: x1, y: top, width: x2 - x1, height: base - top, "fill-opacity": .1, style });
    if (named) draw("rect", svg, { class: "phase", x: x1, y: top - 16, width: Math.max(x2 - x1 - 1, 1), height: 16,
      "fill-opacity": .35, style });
    if (named && fits) draw("text", svg, { x: (x1 + x2) / 2, y: top - 4, "text-anchor": "middle" }, name);
    from = t + 1;
  }
}
function stairs(values, px, py) {
  return values.map((v, t) => `${px(t * MS).toFixed(1)},${py(v).toFixed(1)} ${px((t + 1) * MS).toFixed(1)},${py(v).toFixed(1)}`);
}
function line(svg, points, paint, more = {}) {
  draw("polyline", svg, { points: points.join(" "), fill: "none", style: `stroke:var(--${paint})`,
    "stroke-width": 1.6, ...more });
}
function backwards(points) { return points.map(s => s.split(" ").reverse().join(" ")).reverse(); }

// The chosen port.
function portPlots() {
  const queue = E.ticks.flatMap((row, t) => row.map((at, k) => [(t + (k + 1) / K) * MS, at[port] / 1e3]));
  const low = I.kmin.map(r => r[port] / 1e3), high = I.kmax.map(r => r[port] / 1e3), log = $("log").checked;
  const top = Math.max(E.axes.queue_kb[port], 1) * (log ? 1.3 : 1.05);
  let { svg, px, py } = frame("queue", { height: 260, top, scale: log ? "queue" : "linear", label: "queue, KB",
    times: false, phases: "named" });
  const [under, over] = [stairs(low, px, py), stairs(high, px, py)];
  draw("polygon", svg, { style: "fill:var(--band)", "fill-opacity": .6,
    points: under.concat(backwards(over)).join(" ") });
  line(svg, under, "kmin", { id: "kmin-line" });
  line(svg, over, "kmax", { id: "kmax-line", "stroke-dasharray": "7 3" });
  line(svg, queue.map(([ms, kb]) => `${px(ms).toFixed(1)},${py(kb).toFixed(1)}`), "ink",
    { id: "queue-line", "stroke-width": 1.3 });
  ({ svg, px, py } = frame("shares", { height: 140, top: 100, phases: "tinted", steps: 2,
    label: "utilisation and bytes marked, %" }));
  const marked = I.marked.map(r => 100 * r[port]), used = I.utilisation.map(r => 100 * r[port]);
  draw("polygon", svg, { style: "fill:var(--marked)", "fill-opacity": .75,
    points: `${px(0)},${py(0)} ${stairs(marked, px, py).join(" ")} ${px(T * MS)},${py(0)}` });
  line(svg, stairs(used, px, py), "used");
  $("ports").value = port;
  $("port-name").textContent = E.ports[port].name;
  $("port-kind").textContent = `${E.ports[port].rate_gbps} Gb/s, ${E.ports[port].kind} port`;
}

// The episode: flows by the time that they finish, reward and return.
const finished = E.flows.filter(f => f[5] !== null).sort((a, b) => a[5] - b[5]).map(
  ([, , size, start, ideal, end]) => ({ ms: end / 1e3, slow: (end - start) / ideal, short: size <= E.short_bytes }));
const earned = I.reward.map(row => row.reduce((a, b) => a + b, 0) / row.length);
let total = 0;
const returned = earned.map(x => total += x);
const KINDS = [["short", `flows up to ${number(E.short_bytes / 1e3, 0)} KB`], ["long", "larger"]];
let points = {};
function episodePlots() {
  let { svg, px, py } = frame("slowdowns", { height: 190, low: .9, top: 1.15 * E.axes.slowdown, scale: "log",
    label: "slowdown, FCT / ideal FCT", phases: "named" });
  points = {};
  for (const [kind] of KINDS) {
    const ended = finished.filter(f => f.short === (kind === "short"));
    // A line of no length with round ends is a dot: one path draws thousands of flows quickly.
    const dots = ended.map(f => `M${px(f.ms).toFixed(1)} ${py(f.slow).toFixed(1)}h0`);
    const style = { style: `stroke:var(--${kind})`, "stroke-linecap": "round", "stroke-width": kind === "short" ? 3.4 : 6 };
    draw("path", svg, { ...style, d: dots.join(""), "stroke-opacity": .13 });
    points[kind] = { ended, dots, path: draw("path", svg, { ...style, "stroke-opacity": .7, id: `done-${kind}` }) };
  }
  const ofPort = I.reward.map(r => r[port]), alike = I.reward.every(r => r.every(x => x === r[0]));
  let [low, top] = E.axes.reward[port];
  ({ svg, px, py } = frame("reward", { height: 110, low, top: top - low > 0 ? top : low + 1, steps: 2, times: false,
    phases: "tinted", label: `reward per interval${alike ? "" : ", mean of the ports; thin: this port"}` }));
  if (!alike) line(svg, stairs(ofPort, px, py), "soft", { "stroke-width": .9 });
  line(svg, stairs(earned, px, py), "reward", { id: "reward-line" });
  [low, top] = E.axes.returns;
  ({ svg, px, py } = frame("return", { height: 130, low, top: top - low > 0 ? top : low + 1, steps: 3,
    phases: "tinted", label: "return so far, mean of the ports" }));
  line(svg, [`${px(0)},${py(0)}`, ...returned.map((v, t) => `${px((t + 1) * MS).toFixed(1)},${py(v).toFixed(1)}`)],
    "return", { id: "return-line" });
}
function soFar() {
  const ms = (now + 1) * MS + 1e-9;  // rounding must not leave out a flow that ends now
  $("finished").innerHTML = KINDS.map(([kind, title]) => {
    const { ended, dots, path } = points[kind], n = ended.findIndex(f => f.ms > ms);
    const slow = (n < 0 ? ended : ended.slice(0, n)).map(f => f.slow).sort((a, b) => a - b);
    path.setAttribute("d", dots.slice(0, slow.length).join(""));
    const mean = slow.reduce((a, b) => a + b, 0) / slow.length;
    const text = !slow.length ? "none finished yet" : `${slow.length.toLocaleString("en")} finished, mean ` +
      `<b>${number(mean, 2)}</b>, p99 <b>${number(quantile(slow, .99), 1)}</b>`;
    return `<span><i class="dot" style="background:var(--${kind})"></i>${title}: ${text}</span>`;
  }).join("");
  const digits = Math.abs(total) < 10 ? 4 : 2;
  $("earned").innerHTML = `<span>reward of this interval <b>${number(earned[now], 4)}</b></span>` +
    `<span>return so far <b>${number(returned[now], digits)}</b></span>` +
    `<span>of the episode <b>${number(total, digits)}</b></span>`;
}
function quantile(sorted, q) {
  const at = q * (sorted.length - 1), i = Math.floor(at), next = sorted[Math.min(i + 1, sorted.length - 1)];
  return sorted[i] + (at - i) * (next - sorted[i]);
}

function facts() {
  const at = name => I[name][now][port];
  const rows = [["queue", `${number(at("queue") / 1e3)} KB`], ["mean", `${number(at("queue_mean") / 1e3)} KB`],
    ["Kmin", `${number(at("kmin") / 1e3)} KB`], ["Kmax", `${number(at("kmax") / 1e3)} KB`],
    ["Pmax", number(at("pmax"), 2)], ["utilisation", `${number(100 * at("utilisation"), 0)} %`],
    ["marked", `${number(100 * at("marked"))} %`], ["paused", `${number(100 * at("paused"), 0)} %`]];
  if (E.phases.length > 1) rows.push(["phase", E.phases[E.phase[now][port]]]);
  $("facts").innerHTML = rows.map(([name, value]) => `<span>${name} <b>${value}</b></span>`).join("");
  for (const { cursor, px } of cursors) cursor.setAttribute("x", px(now * MS));
}

// Flows.
function accounts(a) {
  const n = x => Math.round(x).toLocaleString("en"), waited = a.deferred ? ` (${n(a.deferred_us)} µs in all)` : "";
  return `Whole episode: ${n(a.offered)} flows offered, ${n(a.started)} started, ${n(a.finished)} finished, ` +
    `${n(a.unfinished)} unfinished; ${n(a.deferred)} deferred${waited}, ${n(a.waiting)} waiting for a slot; ` +
    `${n(a.dropped)} bytes dropped; feedback too late in ${n(a.late_feedback)} ticks of flows` +
    ("flowlets" in a ? `; ${n(a.flowlets)} flowlets on a new path, ${n(a.flowlets_kept)} ticks of flows on a kept one` : "");
}
function flows() {
  const all = $("all-flows").checked, end = (now + 1) * E.interval_us;
  const rows = E.active[now].filter(([f]) => all || E.flows[f][6].includes(port));
  rows.sort((a, b) => b[2] - a[2] || b[1] - a[1]);
  $("flows-title").textContent = `${rows.length} flow${rows.length === 1 ? "" : "s"} ` +
    (all ? "in the network" : `through ${E.ports[port].name}`) +
    (rows.length ? "" : " in this interval: press Play or move the slider");
  $("flows").innerHTML = rows.map(([f, unsent, rate]) => {
    const [src, dst, size, start, ideal, stop] = E.flows[f];
    const done = stop !== null && stop <= end, elapsed = (end - start) / ideal;
    const slow = done ? `${number((stop - start) / ideal, 2)} (done)`
      : elapsed > 1 ? `≥ ${number(elapsed, 2)}` : "–";
    return `<tr class="${done ? "done" : ""}"><td>${E.hosts[src]}</td><td>${E.hosts[dst]}</td>` +
      `<td>${number(size / 1e3)}</td><td>${number(start / 1e3, 3)}</td><td>${number(unsent / 1e3)}</td>` +
      `<td>${number(rate, 2)}</td><td>${slow}</td></tr>`;
  }).join("");
}

function plots() { cursors.length = 0; portPlots(); episodePlots(); }
function show() {
  $("time").value = now;
  $("clock").textContent = `${number((now + 1) * MS)} of ${number(T * MS)} ms, interval ${now + 1}`;
  paintNetwork(); facts(); soFar(); flows();
}
// In a page with two players each sends the other its position: end of the interval in ms, port, scrolling.
// A page from a file has no origin to name, hence "*".
let followedTo = -1;  // where a message scrolled to: this scrolling must not be sent back
function send(message) { if (parent !== window) parent.postMessage(message, "*"); }
function position() { return { ms: (now + 1) * MS, port }; }
function follow(at) {
  if (at.scroll !== undefined) {
    followedTo = Math.round(at.scroll);
    scrollTo(0, followedTo);
    return;
  }
  if (at.port !== port && at.port in E.ports) { port = at.port; plots(); }
  now = interval(at.ms);
  show();
}
// The interval that holds a time; rounding must not move its end into the next one.
function interval(ms) { return Math.min(Math.max(Math.ceil(ms / MS - 1e-6) - 1, 0), T - 1); }
function seek(t) { now = Math.min(Math.max(t, 0), T - 1); show(); send(position()); }
function choose(p) { port = p; plots(); show(); send(position()); }
function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => now < T - 1 ? seek(now + 1) : play(false), 1e3 / $("speed").value) : null;
  $("play").textContent = on ? "Pause" : "Play";
}
function everything() { network(); plots(); show(); }
$("time").max = T - 1;
$("time").addEventListener("input", e => seek(Number(e.target.value)));
$("play").addEventListener("click", () => { if (!timer && now === T - 1) seek(0); play(!timer); });
$("speed").addEventListener("change", () => { if (timer) play(true); });
$("ports").replaceChildren(...E.ports.map((p, i) => new Option(p.name, i)));
$("ports").addEventListener("change", e => choose(Number(e.target.value)));
$("log").addEventListener("change", () => { plots(); show(); });
$("all-flows").addEventListener("change", flows);
addEventListener("message", e => { if (e.source === parent && e.data) follow(e.data); });
addEventListener("scroll", () => { if (Math.round(scrollY) !== followedTo) send({ scroll: scrollY }); followedTo = -1; });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; everything(); } });
dark.addEventListener("change", everything);
document.addEventListener("keydown", e => {
  if (["INPUT", "SELECT", "BUTTON"].includes(e.target.tagName)) return;
  if (e.key === " ") { e.preventDefault(); $("play").click(); }
  if (e.key === "ArrowRight") seek(now + 1);
  if (e.key === "ArrowLeft") seek(now - 1);
});
$("scenario").textContent = E.scenario;
$("policy").textContent = `thresholds by ${E.policy}, evaluation seed ${E.seed}`;
$("accounts").textContent = accounts(E.accounts);
$("policy").parentNode.title = $("policy").textContent;
document.title = `${E.scenario}: ${E.policy}`;
// The page opens on the busiest moment; #interval or #interval,port opens it there.
const place = location.hash.slice(1).split(",").map(Number);
if (place.length === 2 && place[1] in E.ports) port = place[1];
now = place[0] > 0 ? Math.min(place[0] - 1, T - 1) : interval(E.axes.ms);
everything();
