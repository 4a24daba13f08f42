// The live page: joins the feed with what shows it.

import { follow } from "./page_feed.js";
import { $, Flow, Pools, Requests, seconds, tiles } from "./page_panels.js";
import { TreeView } from "./page_tree.js";

const whole = new Intl.NumberFormat("en");
const STATES = { connecting: "connecting", live: "live", lost: "connecting again", key: "wants a key", loading: "the model loads", stopping: "is ending" };

let paused = false;
let now = null;
let held = null; // the last picture that came while paused
const help = $("tree-help");

const view = new TreeView($("stage"), $("tree"), {
  said(lines) {
    if (lines) $("about").textContent = lines.join(" · ");
    else if (help.parentNode !== $("about")) $("about").replaceChildren(help);
  },
  tipped(lines, x, y) {
    const tip = $("tip");
    tip.hidden = !lines;
    if (!lines) return;
    tip.textContent = lines.join("\n");
    tip.style.left = `${Math.min(x + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(y + 16, innerHeight - tip.offsetHeight - 8)}px`;
  },
  zoomed(id) { $("whole").disabled = !id; },
});
const pools = new Pools($("pools"));
const flow = new Flow($("flow"));
const requests = new Requests();

function state(name) {
  const pill = $("state");
  if (pill.dataset.state === name) return;
  pill.dataset.state = name;
  pill.textContent = STATES[name];
  document.body.classList.toggle("stale", name === "lost");
  if (name !== "key") $("key-form").hidden = true;
}

function showTree(picture) {
  const { components } = picture;
  const box = $("component");
  if (box.childElementCount !== components.length) {
    box.replaceChildren(...components.map((name, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.dataset.at = at;
      button.setAttribute("aria-pressed", String(at === 0));
      return button;
    }));
    box.hidden = components.length < 2;
    view.component = 0;
  }
  view.show(picture, performance.now());
  const [shown, all] = [picture.nodes.length, picture.nodes_total];
  $("tree-said").textContent = shown < all
    ? `the ${whole.format(shown)} nodes used last, of ${whole.format(all)}` : `${whole.format(all)} nodes`;
  $("tree").dataset.nodes = shown;
  empty(all);
}

function empty(nodes) {
  const words = now && now.phase === "loading" ? "The model is loading."
    : nodes ? "" : `Nothing is cached yet. Send a request, for instance:\ncurl ${location.origin}/v1/chat/completions -H 'content-type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}]}'`;
  $("empty").textContent = words;
  $("empty").hidden = !words;
}

let ids = 0; // the highest number of a request that was seen
function showNow(frame) {
  const newest = Math.max(0, ...[...(frame.running ?? []), ...(frame.ended ?? [])].map((one) => one.id));
  if (newest < ids) requests.clear();
  ids = newest;
  now = frame;
  state(frame.phase === "ready" ? "live" : frame.phase);
  $("model").textContent = frame.model ?? "";
  if (frame.phase === "loading") empty(0);
  if (frame.trouble) {
    $("look").textContent = `the cache did not answer (${frame.trouble})`;
    return;
  }
  $("look").textContent = frame.look_s
    ? `a look at the tree: ${seconds(frame.look_s)} every ${seconds(frame.interval_s)}` : "";
  if (frame.phase !== "ready") return;
  flow.add(frame.totals ?? {}, Date.now());
  requests.show(frame);
  pools.show(frame);
  tiles(frame, flow, requests);
  charts();
}

function charts() {
  flow.draw(Date.now());
  requests.draw($("ttft"));
}

const feed = follow("live", {
  event(name, data) {
    if (name === "tree") {
      if (paused) held = data;
      else showTree(data);
    } else if (name === "now") {
      if (!paused) showNow(data);
    }
  },
  state(name, words) {
    if (name === "key") {
      $("key-form").hidden = false;
      $("key-said").textContent = words;
    }
    if (name !== "live") state(name);
  },
});

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  feed.key($("key").value);
  $("key").value = "";
});

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  if (!paused && held) showTree(held);
  held = null;
});

function choose(box, done) {
  box.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const one of box.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button));
    done(button);
    view.ask();
  });
}

choose($("mode"), (button) => {
  view.mode = button.dataset.mode;
  $("ramp").hidden = view.mode === "tier";
  $("ramp-from").textContent = view.mode === "hits" ? "no hit" : "used longest ago";
  $("ramp-to").textContent = view.mode === "hits" ? "most hits" : "last";
});
choose($("component"), (button) => { view.component = Number(button.dataset.at); });

$("filters").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-filter]");
  if (!button) return;
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  view.filters[on ? "add" : "delete"](button.dataset.filter);
  view.ask();
});
$("all-rows").addEventListener("click", () => {
  view.every = !view.every;
  $("all-rows").setAttribute("aria-pressed", String(view.every));
  view.stage.scrollTop = 0;
  view.settle();
});
$("whole").addEventListener("click", () => view.enter(0));
addEventListener("resize", charts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", charts);
