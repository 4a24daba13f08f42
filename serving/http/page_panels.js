// What stands beside the tree: tiles, pools, charts, requests. All text goes in as text.

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TIERS = ["device", "host", "storage", "computed"];
const BUCKET_MS = 2000;
const BUCKETS = 60;
const DOTS = 80;
const LOG_MAX = 60;

const PARTS = [
  ["protected", "cached, in use"], ["evictable", "cached, may go"], ["held", "held by running requests"],
  ["in_flight", "moving between tiers"], ["free", "free"],
];

const WHY = {
  complete: "all of it was cached", unaligned_tail: "all whole pages were cached", never_stored: "never seen before",
  evicted: "was evicted", window_gap: "its window was evicted", no_state: "no state at that length",
  no_slot: "no slot for a state", on_host: "was on the host", in_storage: "was in storage", component: "a component had less",
};

export const $ = (id) => document.getElementById(id);

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function make(name, fields = {}, ...inside) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(fields)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("data-")) node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...inside);
  return node;
}

function drawn(name, fields, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(fields)) {
    if (key === "fill") node.style.fill = value;
    else node.setAttribute(key, value);
  }
  if (text !== undefined) node.textContent = text;
  return node;
}

export function seconds(s) {
  if (s === undefined || s === null) return "–";
  if (s < 0.0995) return `${(s * 1000).toFixed(s < 0.00995 ? 1 : 0)} ms`;
  return s < 9.95 ? `${s.toFixed(2)} s` : `${s.toFixed(0)} s`;
}

function size(n) {
  return n < 1e6 ? `${(n / 1e3).toFixed(0)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(0)} MB` : `${(n / 1e9).toFixed(1)} GB`;
}

function cachedOf(one) { return (one.device ?? 0) + (one.host ?? 0) + (one.storage ?? 0); }

// -- pools -------------------------------------------------------------------------------------

export class Pools {
  constructor(box) {
    this.box = box;
    this.rows = new Map();
  }

  show(now) {
    const seen = new Set();
    for (const [component, tiers] of Object.entries(now.pools ?? {})) {
      for (const [tier, sizes] of Object.entries(tiers)) {
        const used = sizes.protected + sizes.evictable;
        const name = `${component}, ${tier}`;
        seen.add(name);
        this.row(name, tier, PARTS.map(([part, words]) => [part, words, sizes[part]]), sizes.size,
          `${whole.format(used)} of ${whole.format(sizes.size)} cached`);
      }
    }
    if (now.storage) this.store(now.storage, now.counters?.stored_pages ?? 0, seen);
    for (const [name, row] of this.rows) {
      if (!seen.has(name)) {
        row.node.remove();
        this.rows.delete(name);
      }
    }
  }

  // Not every storage knows what it holds; then what this server wrote is told.
  store({ backend, values, bytes, max_bytes: room, circuit }, written, seen) {
    const name = `storage (${backend})`;
    seen.add(name);
    const said = [values === undefined ? `${whole.format(written)} pages written` : `${whole.format(values)} pages`];
    if (bytes !== undefined) said.push(room ? `${size(bytes)} of ${size(room)}` : size(bytes));
    if (circuit === "open") said.push("does not answer");
    const full = room ? Math.min(bytes ?? 0, room) / room : values ?? written ? 1 : 0;
    this.row(name, "storage", [["evictable", "stored", full], ["free", "free", 1 - full]], 1, said.join(", "));
  }

  row(name, tier, parts, size, said) {
    let row = this.rows.get(name);
    if (!row) {
      const words = make("span", { class: "muted small" });
      const bar = make("div", { class: "bar" });
      bar.setAttribute("role", "img");
      const title = make("span", { class: "name" }, name);
      const node = make("div", { class: "pool", "data-tier": tier }, make("div", { class: "line" }, title, words), bar);
      row = { node, words, bar, bits: new Map() };
      this.rows.set(name, row);
      this.box.append(node);
    }
    put(row.words, said);
    const told = [];
    for (const [part, words, count] of parts) {
      let bit = row.bits.get(part);
      if (!bit) {
        bit = make("i", { class: `s-${part}` });
        row.bits.set(part, bit);
        row.bar.append(bit);
      }
      bit.style.width = `${size ? (100 * count) / size : 0}%`;
      bit.title = size > 1 ? `${words}: ${whole.format(count)}` : words;
      if (count) told.push(bit.title);
    }
    row.bar.setAttribute("aria-label", `${name}: ${told.join(", ") || "empty"}`);
  }
}

// -- tokens by time ----------------------------------------------------------------------------

export class Flow {
  constructor(svg) {
    this.svg = svg;
    this.buckets = [];
    this.before = null;
  }

  // Takes the totals of a frame; what they grew by goes into the bucket of this moment.
  add(totals, at) {
    const now = Math.floor(at / BUCKET_MS);
    let last = this.buckets.at(-1);
    if (!last || last.at !== now) {
      last = { at: now, device: 0, host: 0, storage: 0, computed: 0 };
      this.buckets.push(last);
      while (this.buckets[0].at <= now - BUCKETS) this.buckets.shift();
    }
    const before = this.before;
    this.before = totals;
    // A total that fell is that of a server that began anew.
    if (!before || TIERS.some((tier) => (totals[tier] ?? 0) < (before[tier] ?? 0))) return;
    for (const tier of TIERS) last[tier] += (totals[tier] ?? 0) - (before[tier] ?? 0);
  }

  get share() {
    const sums = { cached: 0, all: 0 };
    for (const one of this.buckets) {
      sums.cached += one.device + one.host + one.storage;
      sums.all += one.device + one.host + one.storage + one.computed;
    }
    return sums;
  }

  draw(at) {
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!width) return;
    const now = Math.floor(at / BUCKET_MS);
    const [left, low] = [38, height - 16];
    const most = Math.max(1, ...this.buckets.map((one) => TIERS.reduce((sum, tier) => sum + one[tier], 0)));
    const step = (width - left) / BUCKETS;
    const parts = [
      drawn("line", { class: "grid", x1: left, x2: width, y1: low + 0.5, y2: low + 0.5 }),
      drawn("line", { class: "grid", x1: left, x2: width, y1: 6.5, y2: 6.5 }),
      drawn("text", { x: left - 6, y: 12, "text-anchor": "end" }, short.format(most)),
      drawn("text", { x: left - 6, y: low + 3, "text-anchor": "end" }, "0"),
      drawn("text", { x: left, y: height - 3 }, "2 min ago"),
      drawn("text", { x: width, y: height - 3, "text-anchor": "end" }, "now"),
    ];
    for (const one of this.buckets) {
      const x = left + (BUCKETS - 1 - (now - one.at)) * step;
      let y = low;
      for (const tier of TIERS) {
        const tall = (one[tier] / most) * (low - 7);
        if (tall <= 0) continue;
        y -= tall;
        parts.push(drawn("rect", { x: x + 0.5, y, width: Math.max(step - 1, 0.8), height: tall, fill: `var(--${tier})` }));
      }
      const sum = TIERS.reduce((all, tier) => all + one[tier], 0);
      if (sum) {
        const hover = drawn("rect", { x, y: 0, width: step, height: low, fill: "transparent" });
        hover.append(drawn("title", {}, TIERS.map((tier) => `${tier} ${whole.format(one[tier])}`).join(", ")));
        parts.push(hover);
      }
    }
    this.svg.replaceChildren(...parts);
    const { cached, all } = this.share;
    this.svg.setAttribute("aria-label", `Of ${whole.format(all)} prompt tokens in the last two minutes ${whole.format(cached)} came from the cache`);
  }
}

// -- requests ----------------------------------------------------------------------------------

function row(one) {
  const bar = make("div", { class: "bar" });
  for (const tier of TIERS) {
    const bit = make("i", { class: `c-${tier}` });
    bit.style.width = `${(100 * Math.min(one[tier] ?? 0, one.prompt)) / Math.max(one.prompt, 1)}%`;
    bar.append(bit);
  }
  const rest = Math.max(one.prompt - cachedOf(one) - (one.computed ?? 0), 0);
  bar.title = `${TIERS.map((tier) => `${tier} ${whole.format(one[tier] ?? 0)}`).join(", ")}, to come ${whole.format(rest)}`;
  const cells = [`#${one.id}`, one.state, bar, `${whole.format(cachedOf(one))} of ${whole.format(one.prompt)}`,
    whole.format(one.output ?? 0), seconds(one.ttft_s)];
  return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
}

// Returns ["hit" | "part" | "miss", words] of a request.
function verdict(one) {
  const cached = cachedOf(one);
  const whole_pages = one.miss === "complete" || one.miss === "unaligned_tail";
  const kind = !cached ? "miss" : whole_pages || cached >= 0.75 * one.prompt ? "hit" : "part";
  const from = TIERS.slice(0, 3).filter((tier) => one[tier]).map((tier) => `${whole.format(one[tier])} ${tier}`);
  const why = kind === "hit" ? "" : WHY[one.miss] ?? one.miss ?? "";
  let said = cached ? `${whole.format(cached)} of ${whole.format(one.prompt)} tokens` : `${whole.format(one.prompt)} tokens to compute`;
  if (from.length > 1 || (from.length && !one.device)) said += ` (${from.join(", ")})`;
  if (why) said += cached ? `, the rest ${why}` : `: ${why}`;
  if (one.finish && one.finish !== "stop" && one.finish !== "length") said += `, ${one.finish}`;
  if (one.retractions) said += `, retracted ${one.retractions}×`;
  return [kind, said];
}

export class Requests {
  constructor() {
    this.known = new Set();
    this.items = new Map();
    this.dots = [];
  }

  get median() {
    const times = this.dots.slice(-40).map((one) => one.ttft_s).sort((a, b) => a - b);
    return times.length ? times[times.length >> 1] : undefined;
  }

  show(now) {
    const running = now.running ?? [];
    const all = (now.busy ?? 0) + (now.waiting ?? 0);
    put($("run-said"), running.length < all ? `${running.length} of ${all} are shown` : running.length ? "" : "none");
    $("running").tBodies[0].replaceChildren(...running.map(row));
    for (const one of now.ended ?? []) this.note(one);
    for (const one of running) if (one.state !== "waiting" && cachedOf(one) + (one.computed ?? 0)) this.note(one);
    while ($("log").children.length > LOG_MAX) {
      const last = $("log").lastChild;
      this.items.delete(Number(last.dataset.id));
      last.remove();
    }
  }

  // Writes a request into the log when it is admitted, and what became of it when it has ended.
  note(one) {
    const ended = one.state === "ended";
    if (this.known.has(one.id)) return;
    if (ended) {
      this.known.add(one.id);
      if (this.known.size > 2000) this.known.delete(this.known.values().next().value);
      if (one.ttft_s !== undefined) {
        this.dots.push(one);
        if (this.dots.length > DOTS) this.dots.shift();
      }
    }
    let item = this.items.get(one.id);
    if (!item) {
      item = make("li", { class: "new", "data-id": one.id },
        make("span", { class: "muted small" }, `#${one.id}`), make("span"), make("span"), make("span", { class: "muted small" }));
      this.items.set(one.id, item);
      $("log").prepend(item);
    }
    const [kind, said] = verdict(one);
    const [, badge, words, time] = item.children;
    badge.className = `badge ${kind}`;
    put(badge, kind);
    put(words, said);
    put(time, one.ttft_s === undefined ? "…" : seconds(one.ttft_s));
  }

  // Forgets all: another server answers, and counts from one again.
  clear() {
    this.known.clear();
    this.items.clear();
    this.dots = [];
    $("log").replaceChildren();
  }

  draw(svg) {
    const { clientWidth: width, clientHeight: height } = svg;
    if (!width) return;
    const dots = this.dots;
    const [left, low] = [52, height - 8];
    if (!dots.length) {
      svg.replaceChildren(drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no request has ended yet"));
      return;
    }
    const times = dots.map((one) => Math.max(one.ttft_s, 1e-4));
    const [from, to] = [Math.log10(Math.min(...times)) - 0.1, Math.log10(Math.max(...times)) + 0.1];
    const y = (s) => low - ((Math.log10(Math.max(s, 1e-4)) - from) / (to - from)) * (low - 8);
    const marks = [];
    for (let power = Math.ceil(from); power <= to; power++) marks.push(10 ** power);
    const shown = marks.length > 1 ? marks : [Math.min(...times), Math.max(...times)];
    const parts = shown.flatMap((s) => [
      drawn("line", { class: "grid", x1: left, x2: width, y1: y(s), y2: y(s) }),
      drawn("text", { x: left - 6, y: y(s) + 4, "text-anchor": "end" }, seconds(s)),
    ]);
    const step = (width - left - 10) / Math.max(dots.length - 1, 12);
    dots.forEach((one, at) => {
      const tier = TIERS.slice(0, 3).reduce((best, name) => ((one[name] ?? 0) > (one[best] ?? 0) ? name : best), "computed");
      const main = cachedOf(one) * 2 < one.prompt ? "computed" : tier === "computed" ? "device" : tier;
      const dot = drawn("circle", { cx: left + 6 + at * step, cy: y(one.ttft_s), r: 3.4, fill: `var(--${main})` });
      dot.append(drawn("title", {}, `#${one.id}: ${seconds(one.ttft_s)}, ${whole.format(cachedOf(one))} of ${whole.format(one.prompt)} tokens cached`));
      parts.push(dot);
    });
    svg.replaceChildren(...parts);
  }
}

// -- tiles -------------------------------------------------------------------------------------

export function tiles(now, flow, requests) {
  const { cached, all } = flow.share;
  const totals = now.totals ?? {};
  const [part, sum] = all ? [cached, all] : [cachedOf(totals), TIERS.reduce((s, tier) => s + (totals[tier] ?? 0), 0)];
  put($("t-hit"), sum ? `${((100 * part) / sum).toFixed(part === sum ? 0 : 1)} %` : "–");
  put($("t-hit-words"), `of prompt tokens cached${all ? ", last 2 min" : sum ? ", in all" : ""}`);
  put($("t-ttft"), seconds(requests.median));
  const full = Object.values(now.pools ?? {})[0]?.device;
  put($("t-cached"), full ? whole.format(full.protected + full.evictable) : "–");
  put($("t-cached-words"), full ? `tokens cached of ${whole.format(full.size)} on the device` : "tokens cached on the device");
  put($("t-nodes"), whole.format(now.nodes ?? 0));
  const evicted = now.counters?.evicted_units ?? 0;
  put($("t-nodes-words"), `nodes, ${short.format(evicted)} tokens evicted so far`);
  put($("t-busy"), whole.format(now.busy ?? 0));
  put($("t-busy-words"), `requests run, ${whole.format(now.waiting ?? 0)} wait`);
}
