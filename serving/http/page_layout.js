// From a picture of the tree to bars with places: pure functions, nothing is drawn here.

const LEAF_PX = 13; // what a branch's bar gets at least, unless every branch is wanted
const EVERY_PX = 7;
const BAR_MAX = 44;
const BUNDLE = 1; // height of a bundle, in bars

// Fields of a node in the feed, in their order.
const [ID, PARENT, START, END, CHILDREN, TOUCH, HITS, DEVICE, HOST, LOCKS, PINNED, STORED, MOVES] =
  Array(13).keys();

// Returns {root, byId, hitsMax} of a picture. Each node has its `kids`, as far as they are shown,
// its `rank` (0: used longest ago, 1: last), `first` (the lowest id below, by which siblings are
// sorted, so that a split moves nothing), and `deep`, the depth of what is below it.
export function grow(picture) {
  const root = { id: 0, parent: null, start: 0, end: 0, kids: [], level: 0, children: 0 };
  const byId = new Map([[0, root]]);
  const nodes = [];
  for (const f of picture.nodes) {
    const parent = byId.get(f[PARENT]);
    const node = {
      id: f[ID], parent, start: f[START], end: f[END], children: f[CHILDREN], touch: f[TOUCH],
      hits: f[HITS], device: f[DEVICE], host: f[HOST], locked: f[LOCKS].some((count) => count > 0),
      pinned: f[PINNED], stored: f[STORED], moves: f[MOVES], kids: [], level: parent.level + 1,
    };
    parent.kids.push(node);
    byId.set(node.id, node);
    nodes.push(node);
  }
  const touches = [...new Set(nodes.map((node) => node.touch))].sort((a, b) => a - b);
  const place = new Map(touches.map((touch, at) => [touch, at]));
  let hitsMax = 1;
  for (const node of nodes) {
    node.rank = touches.length > 1 ? place.get(node.touch) / (touches.length - 1) : 1;
    hitsMax = Math.max(hitsMax, node.hits);
  }
  for (const node of [...nodes.reverse(), root]) {
    node.first = node.id || Infinity;
    node.deep = node.end;
    node.count = 1;
    for (const kid of node.kids) {
      node.first = Math.min(node.first, kid.first);
      node.deep = Math.max(node.deep, kid.deep);
      node.count += kid.count;
    }
    node.kids.sort((a, b) => a.first - b.first);
  }
  root.children = picture.branches;
  return { root, byId, hitsMax };
}

// Returns {bars, height, from, to}: what is seen of the tree below `top`, `view` px high. Tokens
// `from` to `to` go from left to right. Where there are more branches than fit, those that were
// used last get bars of their own and the others are bundled; with `every` all of them get one,
// and the height grows.
export function arrange(top, view, every) {
  const leaves = [];
  const walk = [top];
  while (walk.length) {
    const node = walk.pop();
    if (node.kids.length) walk.push(...node.kids);
    else if (node.id) leaves.push(node);
  }
  const room = Math.max(6, Math.floor(view / LEAF_PX));
  let open = openings(top, leaves);
  if (!every && leaves.length > room) {
    leaves.sort((a, b) => b.touch - a.touch || a.id - b.id);
    // Fewer branches leave fewer bundles, too; so it takes a few tries.
    for (let count = room; count >= 1;) {
      leaves.length = count;
      open = openings(top, leaves);
      const rows = count + BUNDLE * [...open].filter((node) => bundled(node, open)).length;
      if (rows <= room) break;
      count = Math.min(count - 1, Math.floor((count * room) / rows));
    }
  }

  const bars = [];
  const place = (node, at) => {
    let y = at;
    for (const kid of node.kids) if (open.has(kid)) y += place(kid, y);
    const bundle = bundled(node, open);
    if (bundle) {
      const deep = Math.max(node.end, ...bundle.shut.map((kid) => kid.deep));
      const count = bundle.shut.reduce((sum, kid) => sum + kid.count, 0);
      bars.push({
        key: `b${node.id}`, below: node, shut: bundle.shut, count, unseen: bundle.unseen,
        from: node.end, to: deep, y, rows: BUNDLE, level: node.level + 1,
      });
      y += BUNDLE;
    }
    const rows = Math.max(y - at, 1);
    if (node.id) {
      bars.push({ key: `n${node.id}`, node, from: node.start, to: node.end, y: at, rows, level: node.level });
    }
    return rows;
  };
  const rows = place(top, 0);
  const unit = Math.min(BAR_MAX, every ? Math.max(EVERY_PX, view / rows) : view / rows);
  for (const bar of bars) {
    bar.y *= unit;
    bar.h = bar.rows * unit;
  }
  const from = top.id ? top.start : 0;
  return { bars, height: rows * unit, from, to: Math.max(top.deep, from + 1) };
}

// Returns the nodes from `top` to all of `leaves`.
function openings(top, leaves) {
  const open = new Set([top]);
  for (const leaf of leaves) for (let at = leaf; !open.has(at); at = at.parent) open.add(at);
  return open;
}

// Returns which children of a node get no bar of their own, or null.
function bundled(node, open) {
  const shut = node.kids.filter((kid) => !open.has(kid));
  const unseen = Math.max(node.children - node.kids.length, 0);
  return shut.length || unseen ? { shut, unseen } : null;
}

// Returns about `count` round numbers between two.
export function ticks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}
