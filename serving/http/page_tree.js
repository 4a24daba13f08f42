// The tree, drawn on a canvas: bars from left (the first token) to right.

import { arrange, grow, ticks } from "./page_layout.js";

const TOP = 20; // room for the axis
const LEFT = 8;
const RIGHT = 14;
const PULSE_MS = 1100;
const GLIDE_MS = 260;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const whole = new Intl.NumberFormat("en");

const MATCHES = {
  device: (node, at) => node.device[at] > 0,
  host: (node, at) => node.host[at] > 0,
  storage: (node) => node.stored,
  locked: (node) => node.locked,
  pinned: (node) => node.pinned,
  moving: (node) => node.moves.length > 0,
};

export const MOVES = {
  queued: "waits for its backup", backup: "is being backed up", load: "is being loaded",
  store: "is being stored",
};

export class TreeView {
  // `said(lines)` is called with what there is to say of the bar that is chosen, or null;
  // `tipped(lines, x, y)` with that of the bar pointed at; `zoomed(id)` when a branch is entered.
  constructor(stage, canvas, { said, tipped, zoomed }) {
    Object.assign(this, { stage, canvas, said, tipped, zoomed });
    this.pen = canvas.getContext("2d");
    this.picture = null;
    this.tree = null;
    this.top = 0;
    this.mode = "tier";
    this.component = 0;
    this.every = false;
    this.filters = new Set();
    this.chosen = null;
    this.places = new Map();
    this.marks = new Map();
    this.bars = [];
    this.clocks = [];
    this.pointer = null;
    this.frame = 0;
    this.paint();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    new ResizeObserver(() => this.settle()).observe(stage);
    stage.addEventListener("scroll", () => this.ask());
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => { this.pointer = null; this.tell(); this.ask(); });
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("blur", () => this.ask());
    canvas.addEventListener("focus", () => this.ask());
  }

  // Reads the colours of the scheme in use.
  paint() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => {
      const hex = style.getPropertyValue(`--${name}`).trim();
      return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    };
    this.colours = Object.fromEntries(
      ["device", "host", "storage", "computed", "none", "soft", "fg", "muted", "line", "cold", "warm",
        "hot", "card", "flash"].map((name) => [name, colour(name)]),
    );
    this.ask();
  }

  // Shows a picture that came at `at` (ms).
  show(picture, at) {
    const before = this.tree;
    const same = this.picture?.generation === picture.generation;
    this.picture = picture;
    this.tree = grow(picture);
    this.clocks.push([picture.clock, at]);
    if (this.clocks.length > 4000) this.clocks.splice(0, 1000);
    if (before && same && !still.matches) {
      for (const [id, node] of this.tree.byId) {
        const old = before.byId.get(id);
        if (!old) this.marks.set(id, { at, fresh: true });
        else if (node.hits > old.hits) this.marks.set(id, { at, fresh: false });
      }
    }
    if (!this.tree.byId.has(this.top)) this.enter(0);
    if (this.chosen && !this.tree.byId.has(this.chosen)) this.chosen = null;
    this.settle(at);
  }

  get leaf() { return this.tree.byId.get(this.top); }

  // Finds the places of all bars anew; they glide there.
  settle() {
    if (!this.tree) return;
    const { clientWidth: width, clientHeight: height } = this.stage;
    const ratio = devicePixelRatio || 1;
    if (this.width !== width || this.height !== height || this.ratio !== ratio) {
      Object.assign(this, { width, height, ratio });
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const found = arrange(this.leaf, height - TOP - 6, this.every);
    this.canvas.style.marginBottom = `${Math.max(0, found.height + TOP + 6 - height)}px`;
    const scale = (width - LEFT - RIGHT) / (found.to - found.from);
    const places = new Map();
    for (const bar of found.bars) {
      bar.x = LEFT + (bar.from - found.from) * scale;
      bar.w = (bar.to - bar.from) * scale;
      const old = this.places.get(bar.key);
      places.set(bar.key, old && !still.matches ? old : { x: bar.x, y: bar.y, w: bar.w, h: bar.h });
    }
    Object.assign(this, { places, bars: found.bars, from: found.from, to: found.to, scale });
    this.canvas.dataset.bars = found.bars.length;
    this.moved = performance.now();
    this.tell();
    this.ask();
  }

  ask() {
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.draw(now));
  }

  // -- drawing ---------------------------------------------------------------------------------

  draw(now) {
    this.frame = 0;
    if (!this.tree || !this.width) return;
    const pen = this.pen;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    this.axis(pen);
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP, this.width, this.height - TOP);
    pen.clip();
    pen.translate(0, TOP - this.stage.scrollTop);
    const step = still.matches ? 1 : Math.min(1, (now - (this.drawn ?? now) + 8) / GLIDE_MS * 2.2);
    this.drawn = now;
    let busy = false;
    for (const bar of this.bars) {
      const place = this.places.get(bar.key);
      for (const side of ["x", "y", "w", "h"]) {
        const gap = bar[side] - place[side];
        if (Math.abs(gap) < 0.4) place[side] = bar[side];
        else { place[side] += gap * step; busy = true; }
      }
      const y = place.y - this.stage.scrollTop;
      if (y > this.height || y + place.h < -4) continue;
      if (bar.node) busy = this.node(pen, bar, place, now) || busy;
      else this.bundle(pen, bar, place);
    }
    pen.restore();
    if (busy) this.ask();
    else this.drawn = undefined;
  }

  axis(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const at of ticks(this.from, this.to, this.width / 110)) {
      const x = LEFT + (at - this.from) * this.scale;
      pen.fillStyle = css(this.colours.line);
      pen.fillRect(Math.round(x), TOP - 4, 1, this.height);
      const words = whole.format(at);
      pen.fillStyle = css(this.colours.muted);
      const wide = pen.measureText(words).width;
      pen.fillText(words, Math.min(x + 3, this.width - wide - 2), TOP / 2);
    }
  }

  fill(node) {
    const c = this.colours;
    if (this.mode === "recency") return ramp(c, node.rank);
    if (this.mode === "hits") {
      return ramp(c, Math.log1p(node.hits) / Math.log1p(this.tree.hitsMax));
    }
    const at = this.component;
    const tier = node.device[at] ? c.device : node.host[at] ? c.host : node.stored ? c.storage : c.none;
    return mix(c.none, tier, 0.42 + 0.58 * node.rank);
  }

  fits(node) {
    if (!this.filters.size) return true;
    for (const name of this.filters) if (MATCHES[name](node, this.component)) return true;
    return false;
  }

  node(pen, bar, { x, y, w, h }, now) {
    const node = bar.node;
    const c = this.colours;
    const gap = h > 5 ? 1 : 0.4;
    const [left, high, wide, tall] = [x + 0.5, y + gap / 2, Math.max(w - 1, 1.5), Math.max(h - gap, 0.8)];
    const fits = this.fits(node);
    pen.globalAlpha = fits ? 1 : 0.13;
    const colour = this.fill(node);
    const round = Math.min(4, tall / 3, wide / 3);
    shape(pen, left, high, wide, tall, round);
    pen.fillStyle = css(colour);
    pen.fill();
    pen.save();
    pen.clip();
    this.copies(pen, node, left, high, wide, tall);
    if (node.moves.length) this.stripes(pen, node, left, high, wide, tall);
    let busy = false;
    const mark = this.marks.get(node.id);
    if (mark) {
      const part = 1 - (now - mark.at) / PULSE_MS;
      if (part <= 0) this.marks.delete(node.id);
      else {
        // What many share is used all the time: a wide bar only shimmers.
        const most = Math.max(0.22, 0.7 - (wide * tall) / 9000);
        pen.fillStyle = css(mark.fresh ? c.computed : c.flash, most * part * part);
        pen.fillRect(left, high, wide, tall);
        busy = true;
      }
    }
    this.label(pen, node, colour, left, high, wide, tall);
    pen.restore();
    if (node.locked && tall > 3) {
      shape(pen, left + 0.75, high + 0.75, Math.max(wide - 1.5, 0.5), Math.max(tall - 1.5, 0.5), round);
      pen.lineWidth = 1.5;
      pen.strokeStyle = css(c.fg);
      pen.stroke();
    }
    if (node.pinned) {
      const side = Math.min(11, tall, wide);
      pen.fillStyle = css(c.fg);
      pen.beginPath();
      pen.moveTo(left + wide, high);
      pen.lineTo(left + wide, high + side);
      pen.lineTo(left + wide - side, high);
      pen.fill();
    }
    pen.globalAlpha = 1;
    if (this.isPointed(bar) || this.chosen === node.id) this.ring(pen, left, high, wide, tall, round);
    return busy;
  }

  // Lines at the lower edge: which copies there are below the tier that the bar's colour shows.
  copies(pen, node, x, y, w, h) {
    if (h < 9 || this.mode !== "tier") return;
    const c = this.colours;
    const at = this.component;
    const lines = [];
    if (node.stored && (node.device[at] || node.host[at])) lines.push(c.storage);
    if (node.host[at] && node.device[at]) lines.push(c.host);
    lines.forEach((colour, index) => {
      pen.fillStyle = css(colour);
      pen.fillRect(x, y + h - 2.5 * (index + 1), w, 2.5);
    });
  }

  stripes(pen, node, x, y, w, h) {
    const c = this.colours;
    const to = node.moves.includes("load") ? c.device : node.moves.includes("store") ? c.storage : c.host;
    pen.strokeStyle = css(to, node.moves[0] === "queued" ? 0.5 : 0.95);
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = x - h; at < x + w; at += 8) {
      pen.moveTo(at, y + h);
      pen.lineTo(at + h, y);
    }
    pen.stroke();
  }

  label(pen, node, colour, x, y, w, h) {
    if (h < 13 || w < 34) return;
    pen.fillStyle = light(colour) > 0.55 ? "#10161d" : "#ffffff";
    const tokens = whole.format(node.end - node.start);
    const words = [
      `${tokens} tokens${node.hits ? `, ${hits(node)}` : ""}`, `${tokens} tokens`, tokens,
    ].find((one) => pen.measureText(one).width < w - 10);
    if (words) pen.fillText(words, x + 6, y + (h > 60 ? Math.min(h / 2, h - 12) : h / 2) - (h > 12 && h < 20 ? 1 : 0));
  }

  bundle(pen, bar, { x, y, w, h }) {
    const c = this.colours;
    const fits = !this.filters.size || bar.shut.some((kid) => this.fits(kid));
    pen.globalAlpha = fits ? 1 : 0.2;
    const wide = Math.max(w - 1, 26);
    pen.fillStyle = css(mix(c.none, c.muted, 0.16));
    shape(pen, x + 0.5, y + 0.5, wide, Math.max(h - 1.5, 1), Math.min(3, h / 3));
    pen.fill();
    const words = more(bar);
    if (h > 9) {
      pen.fillStyle = css(c.muted);
      const text = pen.measureText(words).width < wide - 10 ? words : `+${whole.format(bar.shut.length + bar.unseen)}`;
      pen.fillText(text, x + 6, y + h / 2);
    }
    pen.globalAlpha = 1;
    if (this.isPointed(bar)) this.ring(pen, x + 0.5, y + 0.5, wide, h - 1.5, 3);
  }

  ring(pen, x, y, w, h, round) {
    shape(pen, x - 1, y - 1, w + 2, h + 2, round + 1);
    pen.lineWidth = 2;
    pen.strokeStyle = css(this.colours.fg);
    pen.stroke();
  }

  // -- pointing and keys -----------------------------------------------------------------------

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top - TOP + this.stage.scrollTop;
    if (event.clientY - box.top < TOP) return null;
    return this.bars.find((bar) => {
      const wide = bar.node ? Math.max(bar.w, 3) : Math.max(bar.w, 26);
      return x >= bar.x && x <= bar.x + wide && y >= bar.y && y < bar.y + bar.h;
    }) ?? null;
  }

  isPointed(bar) { return this.pointer?.key === bar.key; }

  point(event) {
    const bar = this.at(event);
    this.pointer = bar && { key: bar.key, x: event.clientX, y: event.clientY };
    this.canvas.style.cursor = bar ? "pointer" : "default";
    this.tell();
    this.ask();
  }

  click(event) {
    const bar = this.at(event);
    if (!bar) return;
    this.chosen = (bar.node ?? bar.below).id || null;
    this.enter(bar.node ? bar.node.id : bar.below.id);
  }

  // Shows what is below a node, and the node. 0: the whole tree.
  enter(id) {
    const node = this.tree?.byId.get(id);
    this.top = node ? id : 0;
    this.stage.scrollTop = 0;
    this.zoomed(this.top);
    this.settle();
  }

  press(event) {
    if (!this.tree || event.ctrlKey || event.metaKey || event.altKey) return;
    const bars = this.bars.filter((bar) => bar.node).sort((a, b) => a.level - b.level || a.y - b.y);
    const now = bars.find((bar) => bar.node.id === this.chosen);
    const level = (of) => bars.filter((bar) => bar.level === of);
    let next;
    switch (event.key) {
      case "ArrowRight": next = now ? bars.find((bar) => bar.node.parent === now.node) : bars[0]; break;
      case "ArrowLeft": next = now && bars.find((bar) => bar.node === now.node.parent); break;
      case "ArrowDown": next = now ? level(now.level)[level(now.level).indexOf(now) + 1] : bars[0]; break;
      case "ArrowUp": next = now ? level(now.level)[level(now.level).indexOf(now) - 1] : bars[0]; break;
      case "Enter": if (now) this.enter(now.node.id); break;
      case "Escape": this.enter(this.leaf.parent?.id ?? 0); break;
      default: return;
    }
    event.preventDefault();
    if (next) {
      this.chosen = next.node.id;
      if (next.y < this.stage.scrollTop) this.stage.scrollTop = next.y;
      const lower = next.y + Math.min(next.h, 60) + TOP + 8 - this.height;
      if (lower > this.stage.scrollTop) this.stage.scrollTop = lower;
    }
    this.tell();
    this.ask();
  }

  // -- words -----------------------------------------------------------------------------------

  tell() {
    const pointed = this.pointer && this.bars.find((bar) => bar.key === this.pointer.key);
    this.tipped(pointed ? this.words(pointed) : null, this.pointer?.x, this.pointer?.y);
    const node = this.chosen && this.tree?.byId.get(this.chosen);
    this.said(node ? this.words({ node }) : null);
  }

  words(bar) {
    if (!bar.node) {
      const nodes = whole.format(bar.count);
      return [
        more(bar), `${bar.shut.length ? `${nodes} nodes in this picture. ` : ""}They were used longer ago than those with a bar of their own.`,
        ...(bar.shut.length ? ["Click to look closer."] : []),
      ];
    }
    const node = bar.node;
    const lines = [
      `Tokens ${whole.format(node.start)} to ${whole.format(node.end)}: ${whole.format(node.end - node.start)} tokens (node ${node.id})`,
    ];
    this.picture.components.forEach((name, at) => {
      const where = [
        node.device[at] && `${whole.format(node.device[at])} on the device`,
        node.host[at] && `${whole.format(node.host[at])} on the host`,
      ].filter(Boolean);
      lines.push(`${name}: ${where.join(", ") || "none"}`);
    });
    if (node.stored) lines.push("in storage");
    lines.push(`${hits(node)}; last used ${this.age(node.touch)}`);
    if (node.locked) lines.push("locked: a running request stands on it");
    if (node.pinned) lines.push("pinned");
    for (const move of node.moves) lines.push(MOVES[move] ?? move);
    if (node.children) lines.push(node.children === 1 ? "1 branch below" : `${whole.format(node.children)} branches below`);
    return lines;
  }

  // When a touch happened, as far as this page has seen the tree's clock.
  age(touch) {
    const seen = this.clocks;
    if (!seen.length || touch <= seen[0][0]) return "before this page was opened";
    let [low, high] = [0, seen.length - 1];
    while (low < high) {
      const mid = (low + high) >> 1;
      if (seen[mid][0] >= touch) high = mid;
      else low = mid + 1;
    }
    const s = (performance.now() - seen[low][1]) / 1000;
    if (s < 2) return "just now";
    return s < 90 ? `${Math.round(s)} s ago` : `${Math.round(s / 60)} min ago`;
  }
}

function hits(node) {
  return node.hits === 1 ? "1 hit" : `${whole.format(node.hits)} hits`;
}

function more(bar) {
  const count = bar.shut.length + bar.unseen;
  return count === 1 ? "1 more branch" : `${whole.format(count)} more branches`;
}

function shape(pen, x, y, w, h, round) {
  pen.beginPath();
  if (round > 0.5) pen.roundRect(x, y, w, h, round);
  else pen.rect(x, y, w, h);
}

function css([r, g, b], alpha = 1) {
  return `rgba(${Math.round(r)}, ${Math.round(g)}, ${Math.round(b)}, ${alpha})`;
}

function mix(a, b, part) {
  return a.map((one, at) => one + (b[at] - one) * part);
}

function ramp(c, part) {
  return part < 0.5 ? mix(c.cold, c.warm, part * 2) : mix(c.warm, c.hot, part * 2 - 1);
}

function light([r, g, b]) {
  return (0.299 * r + 0.587 * g + 0.114 * b) / 255;
}
