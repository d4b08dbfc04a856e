// Layered layout of a graph, and a canvas that shows it: pan, zoom, click. Only boxes in the visible part are drawn, and
// crowded pictures are moved as images.

const GAP_X = 26, GAP_Y = 54;
const MOST_CURVES = 500, MOST_LINES = 2500; // edges drawn as curves, and at all unless chosen, in one frame
// If more than MANY boxes and edges move, they are drawn once, MARGIN of the canvas wider on each side, and this image is shown,
// scaled by at most STRETCH, until nothing has moved for REST milliseconds.
const MANY = 12, MARGIN = 0.3, STRETCH = 1.6, REST = 150;

// Positions of boxes: `ids` in preferred order, `below(id)` the ids under a box, `size(id)` [width, height].
// Cycles are cut where a depth-first search meets them; a box lies under the lowest box above it.
function layered(ids, below, size) {
  const known = new Set(ids), order = [], state = new Map(), down = new Map();
  for (const root of ids) {
    if (state.has(root)) continue;
    const stack = [[root, 0, below(root)]];
    state.set(root, 1); down.set(root, []);
    while (stack.length) {
      const top = stack[stack.length - 1], next = top[2];
      if (top[1] >= next.length) { state.set(top[0], 2); order.push(top[0]); stack.pop(); continue; }
      const child = next[top[1]++];
      if (!known.has(child) || state.get(child) === 1) continue;
      down.get(top[0]).push(child);
      if (!state.has(child)) { state.set(child, 1); down.set(child, []); stack.push([child, 0, below(child)]); }
    }
  }
  order.reverse();
  const level = new Map(order.map((id) => [id, 0]));
  for (const id of order) for (const child of down.get(id)) level.set(child, Math.max(level.get(child), level.get(id) + 1));
  const rows = [], up = new Map(order.map((id) => [id, []]));
  for (const id of order) {
    (rows[level.get(id)] ??= []).push(id);
    for (const child of down.get(id)) up.get(child).push(id);
  }
  return placed(rows, up, down, size);
}

function placed(rows, up, down, size) {
  const x = new Map(), center = (id) => x.get(id) + size(id)[0] / 2;
  for (const row of rows) { let at = 0; for (const id of row) { x.set(id, at); at += size(id)[0] + GAP_X; } }
  const sweep = (list, near) => {
    for (const row of list) {
      const want = new Map(row.map((id) => {
        const others = near.get(id);
        return [id, others.length ? others.reduce((s, o) => s + center(o), 0) / others.length : center(id)];
      }));
      row.sort((a, b) => want.get(a) - want.get(b));
      let end = -Infinity, shift = 0;
      for (const id of row) {
        const left = Math.max(end, want.get(id) - size(id)[0] / 2);
        x.set(id, left);
        shift += want.get(id) - center(id);
        end = left + size(id)[0] + GAP_X;
      }
      for (const id of row) x.set(id, x.get(id) + shift / row.length);
    }
  };
  for (let n = 0; n < 3; n++) { sweep(rows, up); sweep([...rows].reverse(), down); }
  sweep(rows, up);
  const boxes = new Map();
  let y = 0;
  for (const row of rows) {
    let height = 0;
    for (const id of row) { const [w, h] = size(id); boxes.set(id, { x: x.get(id), y, w, h }); height = Math.max(height, h); }
    y += height + GAP_Y;
  }
  return boxes;
}

class Board {
  // `paint(context, id, box, scale)` draws a box; `pick(id, dx, dy, event)` is told of clicks, relative to the box.
  constructor(canvas, paint, pick) {
    Object.assign(this, { canvas, paint, pick, boxes: new Map(), edges: [], view: { x: 0, y: 0, k: 1 }, frames: 0, drawn: 0 });
    this.context = canvas.getContext("2d");
    this.pointers = new Map();
    canvas.tabIndex = 0;
    canvas.addEventListener("pointerdown", (e) => this.press(e));
    canvas.addEventListener("pointermove", (e) => this.drag(e));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => this.release(e));
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); this.zoom(Math.exp(-e.deltaY * 0.0015), e.offsetX, e.offsetY); }, { passive: false });
    canvas.addEventListener("keydown", (e) => this.key(e));
    canvas.addEventListener("theme", () => this.redraw(true));
    new ResizeObserver(() => { this.resize(); if (this.wanted) this.wanted(); }).observe(canvas);
    this.resize();
  }
  color(name) { return this.colors[name] ??= getComputedStyle(this.canvas).getPropertyValue("--" + name).trim(); }
  resize() {
    const { clientWidth: w, clientHeight: h } = this.canvas, ratio = window.devicePixelRatio || 1;
    Object.assign(this, { width: w, height: h, ratio });
    this.canvas.width = Math.round(w * ratio); this.canvas.height = Math.round(h * ratio);
    this.redraw(true);
  }
  // Draw in the next frame; `restyled`: in other colours or at another size.
  redraw(restyled = false) {
    if (restyled) this.colors = {};
    this.image = null; this.shifted = false;
    this.refresh();
  }
  refresh() {
    if (!this.asked) { this.asked = true; requestAnimationFrame((now) => { this.asked = false; this.draw(now); }); }
  }
  // Show boxes (id -> {x, y, w, h}) and edges ({from, to, port, color, width, dash}); `anchor` keeps its place on screen.
  show(boxes, edges, anchor) {
    const old = this.boxes.get(anchor), now = boxes.get(anchor);
    if (old && now) { this.view.x += (old.x - now.x) * this.view.k; this.view.y += (old.y - now.y) * this.view.k; }
    const shift = old && now ? { x: now.x - old.x, y: now.y - old.y } : { x: 0, y: 0 };
    this.moved = { start: performance.now(), from: new Map() };
    for (const [id, box] of boxes) {
      const was = this.boxes.get(id) ?? old;
      if (was) this.moved.from.set(id, { x: was.x + shift.x, y: was.y + shift.y });
    }
    Object.assign(this, { boxes, edges, kept: null });
    this.redraw();
  }
  // Zoom so that the given boxes (all, if none) fill the canvas, at a scale of `least` to `most`; their top stays in view.
  fit(ids, most = 1, least = 0.05) {
    const go = () => {
      if (!this.width || !this.height) return;
      this.wanted = null;
      let [a, b, c, d] = [Infinity, Infinity, -Infinity, -Infinity];
      for (const id of ids ?? this.boxes.keys()) {
        const box = this.boxes.get(id);
        if (box) { a = Math.min(a, box.x); b = Math.min(b, box.y); c = Math.max(c, box.x + box.w); d = Math.max(d, box.y + box.h); }
      }
      if (a > c) return;
      const k = Math.max(least, Math.min(most, (this.width - 40) / (c - a), (this.height - 40) / (d - b)));
      this.view = { k, x: this.width / 2 - k * (a + c) / 2, y: this.height / 2 - k * (b + d) / 2 };
      if (k * (d - b) > this.height - 40) this.view.y = 20 - k * b;
      this.redraw();
    };
    this.wanted = go; // again once the canvas has a size
    go();
  }
  // Move so that a box is visible, without zooming out below readable text.
  reveal(id) {
    const box = this.boxes.get(id);
    if (!box) return;
    const k = this.view.k = Math.max(this.view.k, 0.6);
    this.view.x = this.width / 2 - k * (box.x + box.w / 2);
    this.view.y = this.height / 3 - k * (box.y + box.h / 2);
    this.redraw();
  }
  at(id, now) {
    const box = this.boxes.get(id), from = this.moved?.from.get(id);
    const part = from ? Math.min(1, (now - this.moved.start) / 160) : 1;
    if (part >= 1) return box;
    const ease = part * (2 - part);
    return { x: from.x + (box.x - from.x) * ease, y: from.y + (box.y - from.y) * ease, w: box.w, h: box.h };
  }
  // The edges with their ends, [edge, x1, y1, x2, y2]; kept until boxes move.
  lines(now) {
    if (this.kept && !this.moved) return this.kept;
    const found = [];
    for (const edge of this.edges) {
      const a = this.at(edge.from, now), b = this.at(edge.to, now);
      if (a && b) found.push([edge, a.x + (edge.x ?? a.w / 2), a.y + (edge.y ?? a.h), b.x + b.w / 2, b.y]);
    }
    this.kept = this.moved ? null : found;
    return found;
  }
  draw(now) {
    const { context: g, view, width, height, ratio } = this;
    this.frames++;
    const opening = this.moved && now - this.moved.start < 160;
    if (!opening) this.moved = null;
    if (opening || !this.shifted || this.drawn <= MANY) this.render(g, view, width, height, now);
    else {
      if (!this.image || !this.covers()) this.image = this.picture(now);
      const { canvas, at } = this.image, f = view.k / at.k;
      g.setTransform(ratio, 0, 0, ratio, 0, 0);
      g.clearRect(0, 0, width, height);
      g.imageSmoothingQuality = "low";
      g.drawImage(canvas, view.x - at.x * f, view.y - at.y * f, (canvas.width / ratio) * f, (canvas.height / ratio) * f);
    }
    if (opening) this.redraw();
  }
  // The image of the picture around the visible part: {canvas, at: where it lies}.
  picture(now) {
    const { view, ratio } = this, width = this.width * (1 + 2 * MARGIN), height = this.height * (1 + 2 * MARGIN);
    const canvas = this.spare ??= document.createElement("canvas"), at = { k: view.k, x: view.x + MARGIN * this.width, y: view.y + MARGIN * this.height };
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    this.render(canvas.getContext("2d"), at, width, height, now);
    return { canvas, at };
  }
  // Whether the image contains the visible part, at about its scale.
  covers() {
    const { view, image: { at } } = this, f = view.k / at.k, x = view.x - at.x * f, y = view.y - at.y * f;
    return f < STRETCH && f > 1 / STRETCH && x <= 0 && y <= 0 && x + this.width * (1 + 2 * MARGIN) * f >= this.width && y + this.height * (1 + 2 * MARGIN) * f >= this.height;
  }
  // The view has moved: show it, and draw it again once it rests.
  shift() {
    this.shifted = true;
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.redraw(), REST);
    this.refresh();
  }
  // Draw the boxes and edges that are visible in a view of a canvas; `drawn` is their number.
  render(g, view, width, height, now) {
    const { ratio } = this;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    g.setTransform(ratio * view.k, 0, 0, ratio * view.k, ratio * view.x, ratio * view.y);
    const seen = { a: -view.x / view.k, b: -view.y / view.k, c: (width - view.x) / view.k, d: (height - view.y) / view.k };
    const outside = (x, y, w, h) => x > seen.c || x + w < seen.a || y > seen.d || y + h < seen.b;
    const styles = new Map(); // edges of one look are one path
    let drawn = 0;
    for (const [edge, x1, y1, x2, y2] of this.lines(now)) {
      if (outside(Math.min(x1, x2), Math.min(y1, y2), Math.abs(x1 - x2), Math.abs(y1 - y2))) continue;
      const name = edge.color ?? "edge";
      let style = styles.get(name);
      if (!style) styles.set(name, style = { edge, path: new Path2D() });
      if (drawn++ < MOST_CURVES && view.k > 0.2) {
        const bend = Math.max(20, Math.abs(y2 - y1) / 2);
        style.path.moveTo(x1, y1); style.path.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
      } else if (drawn < MOST_LINES || (edge.width ?? 1) > 1) { style.path.moveTo(x1, y1); style.path.lineTo(x2, y2); }
    }
    for (const { edge, path } of styles.values()) {
      g.strokeStyle = this.color(edge.color ?? "edge"); g.lineWidth = edge.width ?? 1; g.setLineDash(edge.dash ?? []);
      g.stroke(path);
    }
    g.setLineDash([]);
    for (const id of this.boxes.keys()) {
      const box = this.at(id, now);
      if (!outside(box.x, box.y, box.w, box.h)) { drawn++; g.translate(box.x, box.y); this.paint(g, id, box, view.k); g.translate(-box.x, -box.y); }
    }
    this.drawn = drawn;
  }
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const k = Math.min(3, Math.max(0.03, this.view.k * factor)), f = k / this.view.k;
    this.view = { k, x: x - (x - this.view.x) * f, y: y - (y - this.view.y) * f };
    this.shift();
  }
  pan(dx, dy) { this.view.x += dx; this.view.y += dy; this.shift(); }
  press(e) {
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, { x: e.offsetX, y: e.offsetY });
    this.travelled = this.pointers.size > 1 ? Infinity : 0;
  }
  drag(e) {
    const was = this.pointers.get(e.pointerId);
    if (!was) return;
    const now = { x: e.offsetX, y: e.offsetY }, other = [...this.pointers].find(([id]) => id !== e.pointerId)?.[1];
    if (other) {
      const length = (p) => Math.hypot(p.x - other.x, p.y - other.y) || 1;
      this.zoom(length(now) / length(was), (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else if ((this.travelled += Math.hypot(now.x - was.x, now.y - was.y)) > 4) this.pan(now.x - was.x, now.y - was.y);
    this.pointers.set(e.pointerId, now);
  }
  release(e) {
    if (this.pointers.delete(e.pointerId) && e.type === "pointerup" && this.travelled <= 4) this.click(e);
  }
  click(e) {
    const x = (e.offsetX - this.view.x) / this.view.k, y = (e.offsetY - this.view.y) / this.view.k;
    for (const [id, b] of [...this.boxes].reverse()) {
      if (x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h) { this.pick(id, x - b.x, y - b.y, e); return; }
    }
  }
  key(e) {
    const step = 60, moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[e.key]) this.pan(...moves[e.key]);
    else if (e.key === "+" || e.key === "=") this.zoom(1.25);
    else if (e.key === "-") this.zoom(0.8);
    else if (e.key === "0") this.fit();
    else return;
    e.preventDefault();
  }
}

// The text cut to a width, for canvas; widths are estimated from the font's mean character.
function cut(text, width, char = 6.6) {
  const most = Math.max(1, Math.floor(width / char));
  return text.length <= most ? text : text.slice(0, most - 1) + "…";
}
