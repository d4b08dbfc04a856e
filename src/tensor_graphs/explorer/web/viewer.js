// The viewer: an e-graph with its kernels, the plan, the rewrites and the model. Texts of the data only ever become
// text nodes, never markup.

const ROWS = 5, ROW = 17, HEAD = 22, WIDE = 214, OPEN_AT_ONCE = 16, MOST_OPEN = 4000, MOST_ROWS = 500;

// A DOM element: properties, then children (texts become text nodes).
function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== "") made.append(child);
  return made;
}

let UNIT = "µs"; // of costs; "" in e-graphs whose costs are no times
const number = (x) => x >= 1e6 ? x.toPrecision(4) : x >= 100 ? x.toFixed(0) : x === 0 ? "0" : x.toPrecision(x < 0.1 ? 2 : 3);
const time = (us) => !(us < Infinity) ? (us === Infinity ? "none" : "–") : !UNIT ? number(us) : us >= 1000 ? number(us / 1000) + " ms" : number(us) + " µs";
const count = (n) => Number.isFinite(n) ? n.toLocaleString("en") : "–";
const scaled = (n, unit) => !Number.isFinite(n) ? "–" : n >= 1e9 ? (n / 1e9).toPrecision(3) + " G" + unit : n >= 1e6 ? (n / 1e6).toPrecision(3) + " M" + unit : n >= 1e3 ? (n / 1e3).toPrecision(3) + " k" + unit : n + " " + unit;
const signed = (us) => Math.abs(us) < 0.005 ? "no change" : (us > 0 ? "+" : "−") + time(Math.abs(us));

// Indexes of the columns, made once.
class Graph {
  constructor(data) {
    this.data = data;
    const n = (name) => data.numbers(name), t = (name) => data.texts(name), l = (name) => data.lists(name);
    Object.assign(this, {
      types: t("class.type"), weight: n("class.weight"), root: n("class.root"), age: n("class.age"),
      owner: n("node.class"), op: t("node.op"), name: t("node.name"), attrs: t("node.attrs"), kids: l("node.kid"),
      own: n("node.own"), since: n("node.age"), rule: t("node.rule"), rules: t("node.rules"), from: n("node.from"),
      placeClass: n("place.class"), layout: t("place.layout"), given: n("place.given"),
      kernel: t("kernel.name"), backend: t("kernel.backend"), isView: n("kernel.view"), us: n("kernel.us"), low: n("kernel.low"),
      high: n("kernel.high"), price: t("kernel.price"), schedule: t("kernel.schedule"), limit: n("kernel.limit"),
      flops: n("kernel.flops"), bytes: n("kernel.bytes"), error: n("kernel.error"), step: n("kernel.step"),
      out: l("kernel.out"), input: l("kernel.in"), covers: l("kernel.node"), source: t("kernel.source"),
      computes: t("kernel.computes"), operands: t("kernel.operands"), size: n("class.bytes"), launch: n("kernel.launch"), byteRate: n("kernel.byte_rate"), flopRate: n("kernel.flop_rate"), pinned: n("kernel.pinned"), without: n("kernel.without"),
    });
    this.classes = this.types.length; this.nodes = this.owner.length; this.kernels = this.kernel.length;
    const each = (count, items, key) => (put) => { for (let i = 0; i < count; i++) for (const x of items(i)) put(key(x), i); };
    this.nodesOf = grouped(this.classes, (put) => { for (let i = 0; i < this.nodes; i++) put(this.owner[i], i); });
    this.usersOf = grouped(this.classes, each(this.nodes, this.kids, (kid) => kid));
    this.makersOf = grouped(this.classes, each(this.kernels, this.out, (place) => this.placeClass[place]));
    this.fusersOf = grouped(this.classes, each(this.kernels, this.covers, (node) => this.owner[node]));
    this.plan = [];
    for (let k = 0; k < this.kernels; k++) if (this.step[k] >= 0) this.plan[this.step[k]] = k;
    this.ruled = this.rule.dict.some(Boolean);
    this.total = this.plan.reduce((s, k) => s + this.us[k], 0);
    this.chosen = new Uint8Array(this.nodes);
    for (const k of this.plan) for (const node of this.covers(k)) this.chosen[node] = 1;
  }
  kidsOf(cls) { const found = new Set(); for (const n of this.nodesOf(cls)) for (const k of this.kids(n)) found.add(k); return [...found]; }
  planned(cls) { return this.makersOf(cls).find((k) => this.step[k] >= 0); }
  label(node) {
    if (this.name.at(node)) return `${this.op.at(node)} ${this.name.at(node)}`;
    const kids = Array.from(this.kids(node), (k) => "c" + k).join(", "), attrs = this.attrs.at(node);
    return `${this.op.at(node)}(${[kids, attrs].filter(Boolean).join(", ")})`;
  }
  place(p) { return "c" + this.placeClass[p]; }
  // E-nodes of a class in the order shown: chosen ones, those of the model, the others.
  listed(cls) {
    const score = (n) => (this.chosen[n] ? 0 : this.own[n] ? 1 : 2);
    return Array.from(this.nodesOf(cls)).sort((a, b) => score(a) - score(b) || a - b);
  }
  // The kernels of a list by time, chosen first, without views unless nothing else is there.
  ranked(kernels) {
    const found = [...new Set(kernels)].sort((a, b) => (this.step[b] >= 0) - (this.step[a] >= 0) || this.us[a] - this.us[b]);
    const real = found.filter((k) => !this.isView[k]);
    return real.length ? real : found;
  }
  // The e-classes that a kernel reads and the plan does not write, and the least time of kernels that write them.
  missing(k) {
    const classes = [...new Set(Array.from(this.input(k)).filter((p) => !this.given[p]).map((p) => this.placeClass[p]))]
      .filter((c) => !this.weight[c] && this.planned(c) === undefined && this.makersOf(c).length);
    return { classes, us: classes.reduce((s, c) => s + Array.from(this.makersOf(c)).reduce((a, m) => Math.min(a, this.us[m]), Infinity), 0) };
  }
  // The kernels of the plan that compute some e-classes; their time; and about the least time of one kernel instead of
  // them: one launch, the arithmetic of all, and their traffic without the values that pass between them.
  together(classes) {
    const maker = (c) => this.planned(c) ?? this.plan.find((k) => !this.isView[k] && Array.from(this.covers(k)).some((n) => this.owner[n] === c));
    const behind = (p) => { let k = this.makersOf(this.placeClass[p]).find((m) => this.step[m] >= 0); while (k !== undefined && this.isView[k]) { p = this.input(k)[0]; k = this.makersOf(this.placeClass[p]).find((m) => this.step[m] >= 0); } return this.placeClass[p]; };
    const kernels = [...new Set(classes.map(maker))].filter((k) => k !== undefined && !this.isView[k] && this.limit[k] > 0);
    const made = new Set(kernels.flatMap((k) => Array.from(this.out(k), (p) => this.placeClass[p])));
    const sum = (of) => kernels.reduce((s, k) => s + of(k), 0), most = (of) => kernels.reduce((s, k) => Math.max(s, of(k)), 0);
    const passed = new Set(kernels.flatMap((k) => Array.from(this.input(k), behind)).filter((c) => made.has(c)));
    const bytes = sum((k) => this.bytes[k]) - 2 * [...passed].reduce((s, c) => s + this.size[c], 0);
    const least = most((k) => this.launch[k]) + Math.max(Math.max(0, bytes) / most((k) => this.byteRate[k]), sum((k) => this.flops[k]) / most((k) => this.flopRate[k]));
    return { kernels, us: sum((k) => this.us[k]), passed: [...passed], least, between: sum((k) => this.limit[k]) - least };
  }
  // Part of the time that the machine's limit explains; unknown for kernels that are priced at their limit.
  share(k) { return this.price.at(k) !== "bound" && this.limit[k] > 0 && this.us[k] > 0 ? Math.min(1, this.limit[k] / this.us[k]) : NaN; }
}

// A question from its text: words after "forbid" and "pin" are selectors, those after "cost" SELECTOR=µs.
function questionOf(text) {
  const question = { forbid: [], pin: [], cost: {} };
  let kind = "forbid";
  for (const word of text.trim().split(/[\s,]+/).filter(Boolean)) {
    if (word in question) kind = word;
    else if (kind === "cost") { const at = word.lastIndexOf("="); question.cost[word.slice(0, at)] = Number(word.slice(at + 1)); }
    else question[kind].push(word);
  }
  return question;
}

// The tab of the e-graph: an opened neighbourhood of e-classes on a canvas, search, and a panel of details.
class EGraphTab {
  constructor(graph, host) {
    Object.assign(this, { g: graph, host, open: new Map(), selected: -1, kernel: -1, until: Infinity, marked: new Set() });
    this.canvas = el("canvas", { "aria-label": "e-graph: boxes are e-classes, lines lead to operands" });
    this.panel = el("aside", { "aria-live": "polite" });
    this.results = el("div", { class: "results", hidden: true });
    const ages = Array.from(graph.since).reduce((a, b) => Math.max(a, b), 0);
    this.slider = el("input", { type: "range", min: 0, max: ages, value: ages, oninput: () => this.grow() });
    this.grown = el("span");
    this.search = el("input", { type: "search", placeholder: "search: op, type, rule, kernel, name", "aria-label": "search", oninput: () => this.find(), onkeydown: (e) => { if (e.key === "Enter") this.results.querySelector("button")?.click(); } });
    const bar = el("div", { class: "bar" }, this.search,
      ages > 0 ? el("label", {}, "iteration", this.slider, this.grown) : null,
      el("button", { onclick: () => this.reset() }, "outputs"),
      graph.plan.length ? el("button", { onclick: () => this.openPlan(), title: "open all values of the chosen plan" }, "plan") : null,
      el("button", { onclick: () => this.board.fit(), title: "key 0" }, "fit"),
      el("button", { onclick: () => this.board.zoom(1.25), "aria-label": "zoom in" }, "+"),
      el("button", { onclick: () => this.board.zoom(0.8), "aria-label": "zoom out" }, "−"));
    const asked = el("input", { type: "search", placeholder: "what if: forbid k17 rule:merge-*  pin n45  cost k3=2.5", "aria-label": "what-if question", onkeydown: (e) => { if (e.key === "Enter") this.ask(questionOf(asked.value)); } });
    const questions = host.ask ? el("div", { class: "bar asking" }, asked, el("button", { onclick: () => this.ask(questionOf(asked.value)) }, "ask")) : null;
    this.element = el("div", { class: "tab" }, el("div", { class: "board" }, bar, questions ?? "", this.canvas, this.results), this.panel);
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
        for (const n of first.length ? first : nodes.slice(0, 1)) next.push(...this.g.kids(n));
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
    const below = (c) => this.shown(c).flatMap((n) => Array.from(g.kids(n)));
    const boxes = layered(ids, below, size), edges = [];
    for (const c of ids) {
      this.shown(c).forEach((n, i) => {
        for (const kid of new Set(g.kids(n))) if (boxes.has(kid)) {
          edges.push({ from: c, to: kid, x: kid === c ? WIDE : undefined, y: HEAD + (i + 0.75) * ROW, color: g.chosen[n] ? "good" : "edge", width: g.chosen[n] ? 2 : 1 });
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
    c.fillText(cut(`c${id} ${g.types.at(id)}`, box.w - 54, 7.2), 8, HEAD / 2);
    c.font = "10px system-ui, sans-serif"; c.fillStyle = color("soft"); c.textAlign = "right";
    c.fillText(g.root[id] ? "output" : g.weight[id] ? "weight" : "", box.w - 7, HEAD / 2); c.textAlign = "left";
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
    const kids = node !== undefined ? Array.from(this.g.kids(node)) : nodes.flatMap((n) => Array.from(this.g.kids(n)));
    this.add([...new Set(kids)].slice(0, OPEN_AT_ONCE), id);
  }
  // Mark e-classes, to ask for kernels that compute all of them.
  mark(id) {
    if (!this.marked.delete(id)) this.marked.add(id);
    this.board.redraw();
    this.panel.replaceChildren(...this.fusing());
  }
  fusing() {
    const { g } = this, ids = [...this.marked];
    const found = ids.length ? g.ranked(ids.map((c) => new Set(g.fusersOf(c))).reduce((a, b) => new Set([...a].filter((k) => b.has(k))))) : [];
    const now = g.together(ids), value = now.kernels.length > 1 && now.least > 0;
    return [el("h2", {}, `Fusing ${ids.map((c) => "c" + c).join(" and ")}`), el("p", { class: "soft" }, "Shift-click marks e-classes."),
      now.kernels.length ? el("p", {}, "In the plan: ", now.kernels.map((k, i) => [i ? " + " : "", this.kernelRef(k), ` ${time(g.us[k])}`]), now.kernels.length > 1 ? ` = ${time(now.us)}.` : ".") : "",
      value ? el("p", {}, `One kernel for them could take no less than about ${time(now.least)} (launch, arithmetic, traffic${now.passed.length ? ` without ${now.passed.map((c) => "c" + c).join(", ")}` : ""}): fusing them would save at most ${time(Math.max(0, now.us - now.least))}, ${time(Math.max(0, now.between))} of it for the launch and what passes between them.`) : "",
      el("h3", {}, found.length ? "Candidate kernels that compute all marked values" : ""),
      ...(found.length ? found.slice(0, 30).map((k) => this.kernelRow(k, -1)) : [el("p", {}, ids.length < 2 ? "Mark at least two." : "No candidate kernel computes these together: the backends have none and generate none.")])].filter(Boolean);
  }
  // ------------------------------------------------------------ details
  select(c, move = true) {
    this.selected = c; this.kernel = -1;
    if (move) { if (!this.open.has(c)) this.add([c, ...this.g.kidsOf(c).slice(0, 6)]); this.board.reveal(c); }
    this.panel.replaceChildren(...this.classDetails(c));
    this.panel.scrollTop = 0;
    this.board.redraw();
  }
  showKernel(k) {
    const { g } = this, classes = [...g.out(k), ...g.input(k)].map((p) => g.placeClass[p]);
    this.kernel = k;
    this.selected = g.placeClass[g.out(k)[0]];
    this.add([...new Set([...classes, ...Array.from(g.covers(k), (n) => g.owner[n])])].slice(0, 60), this.selected);
    this.board.reveal(this.selected);
    this.panel.replaceChildren(...this.kernelDetails(k));
    this.panel.scrollTop = 0;
  }
  ref(c, text = "c" + c) { return el("button", { class: "ref", onclick: (e) => { e.stopPropagation(); this.select(c); } }, text); }
  refs(classes) { return Array.from(classes).flatMap((c, i) => [i ? ", " : "", this.ref(c)]); }
  classDetails(c) {
    const { g } = this, users = [...new Set(Array.from(g.usersOf(c), (n) => g.owner[n]))].filter((u) => u !== c);
    const nodes = g.listed(c), makers = g.ranked(g.makersOf(c)), fusers = g.ranked(Array.from(g.fusersOf(c)).filter((k) => !g.makersOf(c).includes(k)));
    const tags = [g.root[c] ? "output" : "", g.weight[c] ? "weights only: computed at load" : "", g.age[c] > 0 ? `since iteration ${g.age[c]}` : g.age[c] === 0 ? "value of the model" : ""].filter(Boolean);
    return [el("h2", {}, `c${c}  ${g.types.at(c)}`), el("p", {}, tags.map((t) => el("span", { class: "chip" }, t)), g.kernels ? el("button", { class: "tiny", "aria-pressed": String(this.marked.has(c)), title: "mark e-classes to ask what fusing them would cost (or shift-click)", onclick: () => this.mark(c) }, "mark for fusing") : ""),
      ...this.verdict(c, makers),
      el("p", {}, users.length ? ["read by ", this.refs(users.slice(0, 12)), users.length > 12 ? ` and ${users.length - 12} more ` : " ", el("button", { class: "tiny", onclick: () => this.add(users.slice(0, OPEN_AT_ONCE), c) }, "show")] : "read by nothing else"),
      el("h3", {}, `${nodes.length} equal ${nodes.length === 1 ? "form" : "forms"}`), ...this.most(nodes, 12, (n) => this.nodeRow(n)),
      ...(makers.length ? [el("h3", {}, `${makers.length} kernels that write it`), ...this.most(makers, 8, (k) => this.kernelRow(k, c))] : []),
      ...(fusers.length ? [el("h3", {}, `${fusers.length} kernels that compute it inside`), ...this.most(fusers, 4, (k) => this.kernelRow(k, c))] : [])];
  }
  // Why the chosen kernel of a value is chosen, as one sentence.
  verdict(c, makers) {
    const { g } = this, k = g.planned(c), inside = g.plan.find((p) => !g.isView[p] && Array.from(g.covers(p)).some((n) => g.owner[n] === c));
    if (!g.kernels) return [];
    if (k === undefined) {
      if (inside !== undefined) return [el("p", {}, "Not written to memory: ", this.kernelRef(inside), " computes it inside.")];
      return [el("p", { class: "soft" }, g.weight[c] ? "No kernel needed." : "The plan does not compute it.")];
    }
    if (g.isView[k]) return [el("p", {}, "Chosen: a view of another value, no work.")];
    const rival = makers.find((m) => m !== k && !g.isView[m] && g.us[m] < Infinity);
    const sentence = ["Chosen: ", this.kernelRef(k), ` at ${time(g.us[k])} (${g.price.at(k)}). `];
    if (rival === undefined) return [el("p", {}, ...sentence, "No other kernel writes it.")];
    sentence.push("Next: ", this.kernelRef(rival), ` at ${time(g.us[rival])} (${g.price.at(rival)}). `);
    const missing = g.missing(rival);
    if (missing.classes.length) sentence.push("It reads ", ...this.refs(missing.classes), `, which the plan does not compute: at least ${time(missing.us)} more. `);
    if (g.pinned[rival] >= 0) sentence.push(g.pinned[rival] === Infinity ? "No plan can use that one." : `With it, the whole plan's time: ${signed(g.pinned[rival] - g.total)}.`);
    return [el("p", {}, ...sentence)];
  }
  kernelRef(k) { return el("button", { class: "ref", onclick: () => this.showKernel(k) }, `${this.g.kernel.at(k)} k${k}`); }
  most(items, limit, row) {
    const first = items.slice(0, limit).map(row);
    if (items.length <= limit) return first;
    const more = el("button", { class: "tiny", onclick: () => more.replaceWith(...items.slice(limit, limit + 200).map(row)) }, `${items.length - limit} more`);
    return [...first, more];
  }
  nodeRow(n) {
    const { g } = this, kids = Array.from(g.kids(n));
    const text = g.name.at(n) ? [g.op.at(n), " ", el("b", {}, g.name.at(n))] : [g.op.at(n), "(", this.refs(kids), g.attrs.at(n) ? (kids.length ? ", " : "") + g.attrs.at(n) : "", ")"];
    const start = g.from[n], rule = g.own[n] ? "in the model" : g.rule.at(n) ? [`by ${g.rule.at(n)}`, start >= 0 ? [" from ", g.owner[start] === g.owner[n] ? `n${start} ${g.op.at(start)}` : this.ref(g.owner[start], `n${start}`)] : "", g.rules.at(n) ? `; also ${g.rules.at(n)}` : ""] : g.ruled ? "rule unknown" : "";
    return el("div", { class: "row" + (g.chosen[n] ? " chosen" : "") },
      el("div", { class: "top" }, el("code", {}, ...text.flat(3)), el("span", { class: "soft small" }, `n${n}`)),
      el("div", { class: "soft small" }, ...[rule].flat(4), this.asks("n" + n), g.rule.at(n) && this.host.ask ? [" ", el("button", { class: "tiny", onclick: () => this.ask({ forbid: ["rule:" + g.rule.at(n)] }) }, "without this rule")] : ""));
  }
  kernelRow(k, c) {
    const { g } = this, share = g.share(k), longest = Math.max(g.us[k], 0.001);
    const plan = g.step[k] >= 0 ? (g.without[k] >= 0 ? `in the plan; without it ${g.without[k] === Infinity ? "there is no plan" : signed(g.without[k] - g.total)}` : "in the plan") : g.pinned[k] >= 0 ? (g.pinned[k] === Infinity ? "no plan uses it" : `plan with it ${signed(g.pinned[k] - g.total)}`) : "";
    const others = Array.from(g.out(k), (p) => g.placeClass[p]).filter((o) => o !== c);
    return el("div", { class: "row link" + (g.step[k] >= 0 ? " chosen" : ""), tabIndex: 0, onclick: () => this.showKernel(k), onkeydown: (e) => { if (e.key === "Enter") this.showKernel(k); } },
      el("div", { class: "top" }, el("span", {}, `${g.kernel.at(k)} `, el("span", { class: "soft small" }, `k${k} ${g.backend.at(k)}${g.covers(k).length > 1 ? `, ${g.covers(k).length} ops` : ""}${others.length ? ", writes " + others.map((o) => "c" + o).join(", ") : ""}`)),
        el("span", { class: "num" }, g.isView[k] ? "view" : time(g.us[k]), " ", el("span", { class: "soft small" }, g.isView[k] ? "" : g.price.at(k)))),
      share > 0 ? el("div", { class: "meter", title: "shaded: time; solid: limit of the machine" }, this.width("i", g.us[k] / longest), this.width("b", share)) : null,
      el("div", { class: "soft small" }, [share > 0 ? `${Math.round(100 * share)} % of the limit` : g.price.at(k) === "bound" && !g.isView[k] ? "priced at the machine's limit" : "", plan].filter(Boolean).join("; "), this.asks("k" + k)));
  }
  width(tag, part) { const made = el(tag); made.style.width = `${(100 * Math.min(1, part)).toFixed(1)}%`; return made; }
  // Buttons that ask live what-if questions, where a Python process listens.
  asks(selector) {
    if (!this.host.ask) return "";
    const ask = (kind) => (e) => { e.stopPropagation(); this.ask({ [kind]: [selector] }); };
    return el("span", {}, " ", el("button", { class: "tiny", onclick: ask("forbid") }, "forbid"), " ", el("button", { class: "tiny", onclick: ask("pin") }, "pin"));
  }
  async ask(question) {
    const box = el("div", { class: "row" }, "asking…");
    this.panel.prepend(box);
    this.panel.scrollTop = 0;
    const answer = await this.host.ask(question);
    if (answer.error) { box.replaceChildren(el("b", { class: "bad" }, "no answer: "), answer.error); return; }
    const change = (sign, k) => el("div", { class: "small" }, `${sign} ${k.kernel} ${k.name} → ${k.made} ${time(k.us)} ${k.source}`);
    box.replaceChildren(el("b", {}, answer.question), el("p", {}, `${time(answer.before_us)} → ${time(answer.after_us)} (${signed(answer.difference_us)}${answer.optimal ? ", proven optimal" : ""})`),
      ...answer.removed.map((k) => change("−", k)), ...answer.added.map((k) => change("+", k)), ...answer.unused.map((k) => el("div", {}, `${k}: no output needs its result`)));
  }
  kernelDetails(k) {
    const { g } = this, share = g.share(k), classes = new Set(Array.from(g.covers(k), (n) => g.owner[n]));
    const inside = g.plan.filter((p) => p !== k && !g.isView[p] && Array.from(g.out(p)).every((o) => classes.has(g.placeClass[o])));
    const sum = inside.reduce((s, p) => s + g.us[p], 0);
    const line = (name, ...value) => el("tr", {}, el("th", {}, name), el("td", {}, ...value.flat(3)));
    const interval = g.low[k] < g.us[k] || g.high[k] > g.us[k] ? `, ${time(g.low[k])} to ${time(g.high[k])}` : "";
    return [el("h2", {}, g.kernel.at(k)), el("p", { class: "soft" }, `candidate k${k} of backend ${g.backend.at(k)}`, g.step[k] >= 0 ? el("b", { class: "good" }, ` in the plan, step ${g.step[k]}`) : "", this.asks("k" + k)),
      el("table", {}, line("writes", this.refs(Array.from(g.out(k), (p) => g.placeClass[p]))), line("reads", this.refs(Array.from(g.input(k), (p) => g.placeClass[p]))),
        g.isView[k] ? null : [line("time", `${time(g.us[k])} ${g.price.at(k)}${interval}`),
          line("limit", Number.isFinite(g.limit[k]) ? `${time(g.limit[k])}: ${scaled(g.flops[k], "flop")}, ${scaled(g.bytes[k], "B")}` : "unknown", share > 0 ? ` (${Math.round(100 * share)} % of it reached; ${time(Math.max(0, g.us[k] - g.limit[k]))} lost)` : g.price.at(k) === "bound" ? " (not measured: priced at this limit)" : ""),
          line("error", Number.isFinite(g.error[k]) ? g.error[k].toExponential(2) : "not measured"),
          g.schedule.at(k) ? line("schedule", g.schedule.at(k)) : null,
          g.step[k] >= 0 ? line("without it", g.without[k] >= 0 ? (g.without[k] === Infinity ? "there is no plan" : `the plan's time: ${signed(g.without[k] - g.total)}`) : "not asked") : line("with it", g.pinned[k] >= 0 ? (g.pinned[k] === Infinity ? "no plan uses it" : `the plan's time: ${signed(g.pinned[k] - g.total)}`) : "not asked")]),
      classes.size > 1 && inside.length ? el("p", {}, `It would replace ${inside.length} kernels of the plan: `, inside.map((p, i) => [i ? " + " : "", this.kernelRef(p), ` ${time(g.us[p])}`]), ` = ${time(sum)}; itself ${time(g.us[k])} (${signed(g.us[k] - sum)}).`) : null,
      el("h3", {}, "computes"), el("pre", {}, g.computes.at(k)),
      g.source.at(k) ? el("h3", {}, "source") : null, g.source.at(k) ? el("pre", {}, g.source.at(k)) : null,
      el("h3", {}, "in Python"), el("pre", {}, `explorer.what_if(${g.step[k] >= 0 ? "forbid" : "pin"}=["k${k}"])`)].filter(Boolean);
  }
  // ------------------------------------------------------------ search
  find() {
    const text = this.search.value.trim().toLowerCase();
    this.results.hidden = !text;
    if (!text) return;
    const { g } = this, found = new Map(), note = (c, why) => { if (!found.has(c) && found.size < 60) found.set(c, why); };
    const exact = /^([cnk])(\d+)$/.exec(text);
    if (exact) {
      const i = Number(exact[2]);
      if (exact[1] === "c" && i < g.classes) note(i, "e-class");
      if (exact[1] === "n" && i < g.nodes) note(g.owner[i], g.label(i));
      if (exact[1] === "k" && i < g.kernels) note(g.placeClass[g.out(i)[0]], g.kernel.at(i));
    }
    const scan = (column, owner, why) => {
      const hits = new Set(column.dict.flatMap((t, i) => (t.toLowerCase().includes(text) ? [i] : [])));
      if (hits.size) for (let i = 0; i < column.length && found.size < 60; i++) if (hits.has(column.codes[i])) note(owner(i), why(i));
    };
    scan(g.name, (n) => g.owner[n], (n) => `${g.op.at(n)} ${g.name.at(n)}`);
    scan(g.op, (n) => g.owner[n], (n) => g.label(n));
    scan(g.rule, (n) => g.owner[n], (n) => `${g.label(n)} by ${g.rule.at(n)}`);
    scan(g.kernel, (k) => g.placeClass[g.out(k)[0]], (k) => `${g.kernel.at(k)} ${time(g.us[k])}`);
    scan(g.types, (c) => c, (c) => g.types.at(c));
    const go = (c) => { this.results.hidden = true; this.select(c); };
    this.results.replaceChildren(...(found.size ? [...found].map(([c, why]) => el("button", { onclick: () => go(c) }, `c${c}  `, el("span", { class: "soft" }, why.slice(0, 90)))) : [el("p", { class: "soft" }, " nothing found")]));
  }
}

// The tab of the plan: its kernels in order, with time, share, limit, and what the plan would cost without each.
function planTab(graph, go) {
  const real = graph.plan.filter((k) => !graph.isView[k]), lost = real.filter((k) => graph.share(k) > 0).reduce((s, k) => s + Math.max(0, graph.us[k] - graph.limit[k]), 0);
  const longest = real.reduce((most, k) => Math.max(most, graph.us[k]), 1e-9), shown = real.length <= MOST_ROWS ? real : [...real].sort((a, b) => graph.us[b] - graph.us[a]).slice(0, MOST_ROWS);
  const bar = (k) => {
    const i = el("i"), b = el("b");
    i.style.width = `${(100 * graph.us[k]) / longest}%`; b.style.width = `${(100 * Math.min(graph.limit[k] || 0, graph.us[k])) / longest}%`;
    return el("div", { class: "meter", title: "shaded: time; solid: limit of the machine" }, i, b);
  };
  const row = (k, n) => el("tr", {}, el("td", { class: "num soft" }, String(n + 1)),
    el("td", {}, el("button", { class: "ref", onclick: () => go(k) }, graph.kernel.at(k)), el("div", { class: "soft small" }, graph.computes.at(k).slice(0, 120)), bar(k)),
    el("td", { class: "num" }, time(graph.us[k]), el("div", { class: "soft small" }, graph.price.at(k))),
    el("td", { class: "num" }, `${((100 * graph.us[k]) / graph.total).toFixed(1)} %`),
    el("td", { class: "num" }, graph.share(k) > 0 ? `${Math.round(100 * graph.share(k))} %` : "–"),
    el("td", { class: "num" }, graph.without[k] >= 0 ? (graph.without[k] === Infinity ? "no plan" : signed(graph.without[k] - graph.total)) : "–"));
  return el("div", { class: "scroll" }, el("h2", {}, `${count(real.length)} kernels, ${time(graph.total)}`),
    el("p", { class: "soft" }, lost > 0 ? `${time(lost)} of it is above the limit of the machine (launch, traffic and arithmetic at the rates of its roofline).` : "", UNIT && real.length && real.every((k) => graph.price.at(k) !== "measured") ? " No kernel of it was measured: times are predictions or bounds." : ""),
    el("table", {}, el("tr", {}, ["", "kernel", "time", "share", "of limit", "without it"].map((t, i) => el("th", { class: i > 1 ? "num" : "" }, t))), shown.map(row)), shown.length < real.length ? el("p", { class: "soft" }, `The ${MOST_ROWS} most expensive of ${count(real.length)}.`) : null);
}

// A canvas with a term or a model: boxes of operations, data flows downwards.
function termBoard(caption, pick) {
  const canvas = el("canvas"), text = el("div", { class: "caption" }, caption);
  const state = { mark: new Map(), label: () => "", detail: () => "" };
  const board = new Board(canvas, (c, id, box, k) => {
    const kind = state.mark.get(id);
    c.fillStyle = board.color(kind ? kind + "-fill" : "box"); c.strokeStyle = board.color(kind ?? "line"); c.lineWidth = kind ? 2 : 1;
    c.beginPath(); c.roundRect(0, 0, box.w, box.h, 6); c.fill(); c.stroke();
    if (k <= 0.28) return;
    c.textBaseline = "middle"; c.fillStyle = board.color("ink"); c.font = "600 12px system-ui, sans-serif";
    c.fillText(cut(state.label(id), box.w - 14, 7.4), 8, 13);
    c.fillStyle = board.color("soft"); c.font = "11px ui-monospace, Menlo, Consolas, monospace";
    c.fillText(cut(state.detail(id), box.w - 14), 8, 30);
  }, (id) => pick?.(id));
  return { board, state, caption: text, element: el("div", { class: "board" }, text, canvas) };
}

const HIDDEN = ["param", "constant", "full"]; // leaves that are named in the operations that read them

// The detail line of an operation: its type, and the names of the leaves that have no box.
function detailOf(op, name, type, args) {
  return (t) => [type.at(t), ...Array.from(args(t)).filter((a) => HIDDEN.includes(op.at(a))).map((a) => name.at(a) || op.at(a))].join("  ");
}

// Show a graph on a term board: `ids` outputs last, `args(id)` its operands.
function showTerm(view, ids, args, focus) {
  const width = 210, users = new Map(ids.map((id) => [id, []])), edges = [];
  for (const id of ids) for (const a of new Set(args(id))) if (users.has(a)) { users.get(a).push(id); edges.push({ from: a, to: id }); }
  view.board.show(layered(ids, (id) => users.get(id), () => [width, 42]), edges);
  if (focus?.length) view.board.fit(focus, 0.8, 0.5); else view.board.fit(null, 0.9, 0.55);
}

function modelTab(data, graph, go) {
  const op = data.texts("model.op"), name = data.texts("model.name"), type = data.texts("model.type"), cls = data.numbers("model.class"), args = data.lists("model.arg");
  const left = termBoard(`the model, simplified: ${op.length} operations`, (id) => { if (cls[id] >= 0) go.select(cls[id]); });
  const right = termBoard(`the plan: ${graph.plan.filter((k) => !graph.isView[k]).length} kernels`, (id) => { if (typeof id === "number") go.kernel(id); });
  left.state.label = (id) => `${op.at(id)} ${name.at(id)}`; left.state.detail = detailOf(op, name, type, args);
  const maker = new Map(graph.plan.flatMap((k) => Array.from(graph.out(k), (p) => [p, k])));
  const through = (p) => { while (maker.has(p) && graph.isView[maker.get(p)]) p = graph.input(maker.get(p))[0]; return p; };
  const real = graph.plan.filter((k) => !graph.isView[k]);
  const reads = (k) => (typeof k === "string" ? [] : Array.from(graph.input(k), (p) => maker.get(through(p)) ?? "given " + graph.placeClass[through(p)]));
  const leaf = (c) => { const n = Array.from(graph.nodesOf(c)).find((i) => graph.name.at(i)); return n === undefined ? (graph.weight[c] ? `weights c${c}` : `c${c}`) : `${graph.op.at(n)} ${graph.name.at(n)}`; };
  right.state.label = (k) => (typeof k === "string" ? leaf(Number(k.slice(6))) : `${graph.kernel.at(k)}  ${time(graph.us[k])}`);
  right.state.detail = (k) => (typeof k === "string" ? graph.types.at(Number(k.slice(6))) : [graph.computes.at(k), ...reads(k).filter((r) => typeof r === "string" && graph.weight[Number(r.slice(6))]).map((r) => leaf(Number(r.slice(6))))].join("  "));
  for (const k of real) right.state.mark.set(k, graph.us[k] > 0.2 * graph.total ? "warn" : "good");
  const shown = () => {
    showTerm(left, Array.from(op.codes.keys()).filter((id) => !HIDDEN.includes(op.at(id))), args);
    const givens = new Set(real.flatMap(reads).filter((r) => typeof r === "string" && !graph.weight[Number(r.slice(6))]));
    showTerm(right, [...givens, ...real], reads);
  };
  return { element: el("div", { class: "tab" }, el("div", { class: "pair" }, left.element, right.element)), shown };
}

// The tab of the rewriting: the steps in order; the whole term before and after, with what changed.
function rewriteTab(data) {
  const op = data.texts("term.op"), name = data.texts("term.name"), type = data.texts("term.type"), args = data.lists("term.arg");
  const column = (c) => data.numbers("step." + c), rule = data.texts("step.rule"), forward = column("forward"), output = column("output");
  const [old, now, before, after] = ["old", "new", "before", "after"].map(column);
  const below = (root) => { const seen = new Set(), order = []; const visit = [[root, false]]; while (visit.length) { const [t, done] = visit.pop(); if (done) { order.push(t); continue; } if (seen.has(t)) continue; seen.add(t); visit.push([t, true]); for (const a of args(t)) visit.push([a, false]); } return order; };
  const left = termBoard("before"), right = termBoard("after");
  for (const side of [left, right]) { side.state.label = (t) => `${op.at(t)} ${name.at(t)}`; side.state.detail = detailOf(op, name, type, args); }
  let step = 0;
  const buttons = Array.from(rule.codes.keys(), (i) => el("button", { onclick: () => show(i) }, `${i + 1}. ${rule.at(i)}${forward[i] ? "" : " (right to left)"}`));
  const show = (i) => {
    step = Math.max(0, Math.min(rule.length - 1, i));
    buttons.forEach((b, n) => b.setAttribute("aria-pressed", String(n === step)));
    buttons[step].scrollIntoView({ block: "nearest" });
    const was = below(old[step]), is = below(now[step]), changed = (list, other) => list.filter((t) => !other.includes(t));
    const gone = changed(below(before[step]), below(after[step])), made = changed(below(after[step]), below(before[step]));
    left.state.mark = new Map([[before[step], "bad"], ...gone.map((t) => [t, "bad"])]);
    right.state.mark = new Map([[after[step], "good"], ...made.map((t) => [t, "good"])]);
    left.caption.textContent = `step ${step + 1} of ${rule.length}, output ${output[step]}: before ${rule.at(step)}`;
    right.caption.textContent = "after: new parts are green";
    const boxed = (list) => list.filter((t) => !HIDDEN.includes(op.at(t)));
    showTerm(left, boxed(was), args, [...gone, before[step]]); showTerm(right, boxed(is), args, [...made, after[step]]);
  };
  const bar = el("div", { class: "bar" }, el("button", { onclick: () => show(step - 1) }, "previous"), el("button", { onclick: () => show(step + 1) }, "next"));
  const list = el("div", { class: "steps" }, rule.length ? bar : null, rule.length ? buttons : el("p", { class: "soft" }, "The chosen form is the model's own: no rule was needed."));
  return { element: el("div", { class: "tab" }, list, el("div", { class: "pair" }, left.element, right.element)), shown: () => { if (rule.length) show(step); } };
}

// Build the viewer in `root`. `host`: {ask: question -> promise of an answer, or null; embedded: whether inside a notebook}.
function mount(root, data, host = {}) {
  const graph = new Graph(data), meta = data.meta;
  UNIT = meta.unit ?? "µs";
  root.classList.add("tg", "tgv");
  if (host.embedded) root.classList.add("embedded");
  const main = new EGraphTab(graph, host), boards = [main.board];
  const tabs = new Map([["E-graph", { element: main.element }]]);
  const go = { select: (c) => { pick("E-graph"); main.select(c); }, kernel: (k) => { pick("E-graph"); main.showKernel(k); } };
  if (graph.plan.length) tabs.set("Plan", { element: planTab(graph, go.kernel) });
  if (data.has("model.op")) tabs.set("Model and plan", modelTab(data, graph, go));
  if (data.columns.has("step.rule")) tabs.set("Rewrites", rewriteTab(data));
  const buttons = new Map([...tabs.keys()].map((name) => [name, el("button", { "aria-selected": "false", onclick: () => pick(name) }, name)]));
  const pick = (name) => {
    for (const [other, tab] of tabs) { tab.element.hidden = other !== name; buttons.get(other).setAttribute("aria-selected", String(other === name)); }
    const tab = tabs.get(name);
    if (tab.shown && !tab.done) { tab.done = true; tab.shown(); }
  };
  const theme = el("button", { "aria-label": "light or dark", onclick: () => {
    const dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    root.dispatchEvent(new Event("theme"));
  } }, "◐");
  const repaint = () => { for (const canvas of root.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("theme")); };
  root.addEventListener("theme", repaint);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  root.append(el("header", {}, el("h1", {}, meta.title ?? "e-graph"), el("span", {}, (meta.facts ?? []).map((f) => el("span", { class: "chip" }, f))), el("nav", {}, tabs.size > 1 ? [...buttons.values()] : [], theme)),
    ...[...tabs.values()].map((t) => t.element), ...(meta.notes?.length ? [el("p", { class: "soft small caption" }, meta.notes.join(" "))] : []));
  pick("E-graph");
  return { main, graph, boards, pick, tabs };
}

// For a notebook widget: the data is a model's trait, questions are messages.
function render({ model, el: root }) {
  const bytes = model.get("data"), box = document.createElement("div"), light = document.body.dataset.jpThemeLight;
  if (light || document.body.classList.contains("vscode-dark")) box.dataset.theme = light === "true" ? "light" : "dark";
  root.append(box);
  let number = 0;
  const waiting = new Map();
  model.on("msg:custom", (message) => { waiting.get(message.id)?.(message); waiting.delete(message.id); });
  const ask = (question) => new Promise((done) => { waiting.set(++number, done); model.send({ id: number, ...question }); });
  readColumns(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)).then((data) => mount(box, data, { ask, embedded: true }));
}
