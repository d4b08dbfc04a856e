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
