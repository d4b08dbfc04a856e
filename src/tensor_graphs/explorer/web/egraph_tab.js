// The tab of the e-graph: an opened neighbourhood of e-classes on a canvas, search, and a panel of details.
class EGraphTab {
  constructor(graph, host) {
    Object.assign(this, { g: graph, host, open: new Map(), selected: -1, kernel: -1, until: Infinity, marked: new Set() });
    this.canvas = el("canvas", { "aria-label": "e-graph: boxes are e-classes, lines lead to operands" });
    this.panel = new Panel(graph, this, host);
    this.results = el("div", { class: "results", hidden: true });
    const ages = Array.from(graph.since).reduce((a, b) => Math.max(a, b), 0);
    this.slider = el("input", { type: "range", min: 0, max: ages, value: ages, oninput: () => this.grow() });
    this.grown = el("span");
    this.search = el("input", { type: "search", placeholder: "search: op, layer, weight, rule, kernel, type", "aria-label": "search", oninput: () => this.find(), onkeydown: (e) => { if (e.key === "Enter") this.results.querySelector("button")?.click(); } });
    const bar = el("div", { class: "bar" }, this.search,
      ages > 0 ? el("label", {}, "iteration", this.slider, this.grown) : null,
      el("button", { onclick: () => this.reset() }, "outputs"),
      graph.plan.length ? el("button", { onclick: () => this.openPlan(), title: "open all values of the chosen plan" }, "plan") : null,
      el("button", { onclick: () => this.board.fit(), title: "key 0" }, "fit"),
      el("button", { onclick: () => this.board.zoom(1.25), "aria-label": "zoom in" }, "+"),
      el("button", { onclick: () => this.board.zoom(0.8), "aria-label": "zoom out" }, "−"));
    const asked = el("input", { type: "search", placeholder: "what if: forbid k17 rule:merge-*  pin n45  cost k3=2.5", "aria-label": "what-if question", onkeydown: (e) => { if (e.key === "Enter") this.panel.ask(questionOf(asked.value)); } });
    const questions = host.ask ? el("div", { class: "bar asking" }, asked, el("button", { onclick: () => this.panel.ask(questionOf(asked.value)) }, "ask")) : null;
    this.element = el("div", { class: "tab" }, el("div", { class: "board" }, bar, questions ?? "", this.canvas, this.results), this.panel.element);
    this.board = new Board(this.canvas, (c, id, box, k) => this.paint(c, id, box, k), (id, x, y, e) => this.pick(id, y, e));
    this.grow(false);
    this.reset();
  }
  // ------------------------------------------------------------ what is open
  reset() {
    this.open.clear();
    const roots = [];
    for (let c = 0; c < this.g.classes && roots.length < 8; c++) if (this.g.root[c]) roots.push(c);
    let level = roots.length ? roots : [0];
    for (let depth = 0; depth < 5 && this.open.size < 26; depth++) {
      const next = [];
      for (const c of level) {
        if (this.open.has(c) || this.open.size >= 30) continue;
        this.open.set(c, true);
        const nodes = this.g.listed(c), first = nodes.filter((n) => this.g.chosen[n] || this.g.own[n]).slice(0, 2);
        for (const n of first.length ? first : nodes.slice(0, 1)) for (const child of this.g.children(n).subarray(0, 100)) next.push(child);
      }
      level = next;
    }
    this.select(level.length || roots.length ? (roots[0] ?? 0) : 0, false);
    this.arrange();
    this.board.fit(null, 1, 0.7);
  }
  openPlan() {
    for (const k of this.g.plan) for (const p of this.g.out(k)) this.open.set(this.g.placeClass[p], true);
    this.arrange(); this.board.fit();
  }
  add(classes, anchor) {
    for (const c of classes) if (this.open.size < MOST_OPEN) this.open.set(c, true);
    this.arrange(anchor);
  }
  arrange(anchor) {
    const { g } = this, ids = [...this.open.keys()].filter((c) => this.exists(c));
    const size = (c) => [WIDE, this.height(c)];
    const below = (c) => this.shown(c).flatMap((n) => Array.from(g.children(n)));
    const boxes = layered(ids, below, size), edges = [];
    for (const c of ids) {
      this.shown(c).forEach((n, i) => {
        for (const child of new Set(g.children(n))) if (boxes.has(child)) {
          edges.push({ from: c, to: child, x: child === c ? WIDE : undefined, y: HEAD + (i + 0.75) * ROW, color: g.chosen[n] ? "good" : "edge", width: g.chosen[n] ? 2 : 1 });
        }
      });
    }
    for (const edge of edges) if (edge.x === undefined) edge.x = edge.y < this.height(edge.from) - ROW ? WIDE : WIDE / 2;
    this.board.show(boxes, [...edges, ...this.hyperedge(boxes)], anchor);
  }
  // The lines of the selected kernel, from the values it writes to those it reads.
  hyperedge(boxes) {
    if (this.kernel < 0) return [];
    const { g } = this, place = (p) => g.placeClass[p], found = [];
    for (const o of g.out(this.kernel)) for (const i of g.input(this.kernel)) {
      if (boxes.has(place(o)) && boxes.has(place(i))) found.push({ from: place(o), to: place(i), x: 8, y: HEAD / 2, color: "warn", width: 2.5, dash: [6, 4] });
    }
    return found;
  }
  exists(c) { return !(this.g.age[c] > this.until); }
  shown(c) {
    const known = this.g.listed(c).filter((n) => !(this.g.since[n] > this.until));
    return known.slice(0, ROWS);
  }
  hidden(c) { return this.g.nodesOf(c).length - this.shown(c).length; }
  height(c) { return HEAD + this.shown(c).length * ROW + (this.hidden(c) > 0 ? 14 : 0) + (this.g.kernels ? 18 : 4); }
  grow(draw = true) {
    const max = Number(this.slider.max), now = Number(this.slider.value);
    this.until = now >= max ? Infinity : now;
    let nodes = 0;
    for (let n = 0; n < this.g.nodes; n++) if (!(this.g.since[n] > this.until)) nodes++;
    this.grown.textContent = `${now} of ${max}: ${count(nodes)} e-nodes`;
    if (draw) this.arrange();
  }
  // ------------------------------------------------------------ drawing
  paint(c, id, box, k) {
    const { g, board } = this, color = (name) => board.color(name), made = g.kernels ? g.planned(id) : undefined;
    const covered = this.kernel >= 0 && g.covers(this.kernel).some((n) => g.owner[n] === id);
    c.fillStyle = color("box"); c.strokeStyle = color(this.marked.has(id) ? "warn" : id === this.selected ? "accent" : covered ? "warn" : made !== undefined ? "good" : "line");
    c.lineWidth = id === this.selected || this.marked.has(id) ? 2.5 : covered || made !== undefined ? 1.8 : 1;
    if (k <= 0.18) { c.fillRect(0, 0, box.w, box.h); c.strokeRect(0, 0, box.w, box.h); return; }
    c.beginPath(); c.roundRect(0, 0, box.w, box.h, 6); c.fill();
    c.fillStyle = color(covered ? "warn-fill" : g.weight[id] ? "panel" : "accent-fill");
    c.beginPath(); c.roundRect(1, 1, box.w - 2, HEAD - 2, [5, 5, 0, 0]); c.fill();
    c.beginPath(); c.roundRect(0, 0, box.w, box.h, 6); c.stroke();
    if (k <= 0.3) return;
    c.textBaseline = "middle";
    c.font = "600 12px system-ui, sans-serif"; c.fillStyle = color("ink");
    const tag = g.root[id] ? "output" : g.weight[id] ? "weight" : "";
    c.fillText(cut(`c${id} ${g.types.at(id)}`, box.w - (tag ? 50 : 12), 7), 8, HEAD / 2);
    c.font = "10px system-ui, sans-serif"; c.fillStyle = color("soft"); c.textAlign = "right";
    c.fillText(tag, box.w - 7, HEAD / 2); c.textAlign = "left";
    const nodes = this.shown(id);
    c.font = "11px ui-monospace, Menlo, Consolas, monospace";
    nodes.forEach((n, i) => {
      const y = HEAD + i * ROW;
      if (g.chosen[n]) { c.fillStyle = color("good-fill"); c.fillRect(1.5, y, box.w - 3, ROW); }
      c.fillStyle = color(g.chosen[n] ? "good" : g.own[n] ? "ink" : "soft");
      c.fillText(cut(g.label(n), box.w - 14), 8, y + ROW / 2 + 1);
    });
    let y = HEAD + nodes.length * ROW;
    c.font = "11px system-ui, sans-serif"; c.fillStyle = color("soft");
    if (this.hidden(id) > 0) { c.fillText(`+ ${this.hidden(id)} more forms`, 8, y + 7); y += 14; }
    if (g.kernels) {
      const best = made ?? g.ranked(g.makersOf(id))[0];
      c.fillStyle = color(made !== undefined ? "good" : "soft");
      c.fillText(cut(best === undefined ? (g.weight[id] ? "computed at load" : g.makersOf(id).length ? "" : "no kernel of its own") : g.isView[best] ? `view, no work` : `${g.kernel.at(best)}  ${time(g.us[best])}`, box.w - 14), 8, y + 9);
    }
  }
  pick(id, y, event) {
    if (event.shiftKey) { this.mark(id); return; }
    const row = Math.floor((y - HEAD) / ROW), nodes = this.shown(id), node = row >= 0 ? nodes[row] : undefined;
    this.select(id, false);
    const children = node !== undefined ? Array.from(this.g.children(node)) : nodes.flatMap((n) => Array.from(this.g.children(n)));
    this.add([...new Set(children)].slice(0, OPEN_AT_ONCE), id);
  }
  // Mark e-classes, to ask for kernels that compute all of them.
  mark(id) {
    if (!this.marked.delete(id)) this.marked.add(id);
    this.board.redraw();
    this.panel.show(this.panel.fusing());
  }
  unmark() { this.marked.clear(); this.select(this.selected, false); }
  // ------------------------------------------------------------ details
  select(c, move = true) {
    this.selected = c; this.kernel = -1;
    if (move) { if (!this.open.has(c)) this.add([c, ...this.g.childrenOf(c).slice(0, 6)]); this.board.reveal(c); }
    this.panel.show(this.panel.classDetails(c));
    this.board.redraw();
  }
  showKernel(k) {
    const { g } = this, classes = [...g.out(k), ...g.input(k)].map((p) => g.placeClass[p]);
    this.kernel = k;
    this.selected = g.placeClass[g.out(k)[0]];
    this.add([...new Set([...classes, ...Array.from(g.covers(k), (n) => g.owner[n])])].slice(0, 60), this.selected);
    this.board.reveal(this.selected);
    this.panel.show(this.panel.kernelDetails(k));
  }
  find() {
    const text = this.search.value.trim().toLowerCase();
    this.results.hidden = !text;
    if (!text) return;
    const found = searched(this.g, text), go = (c) => { this.results.hidden = true; this.select(c); };
    this.results.replaceChildren(...(found.size ? [...found].map(([c, why]) => el("button", { onclick: () => go(c) }, `c${c}  `, el("span", { class: "soft" }, why.slice(0, 90)))) : [el("p", { class: "soft" }, " nothing found")]));
  }
}
