// The panel of details beside the canvas: an e-class, a kernel, marked e-classes, answers to what-if questions.

const PRICES = {
  measured: "timed on this machine", shipped: "timed elsewhere: by the team, or shipped with the package",
  predicted: "estimated from measurements of similar kernels", bound: "not measured: the machine's limit for its work, so the real time may be longer",
};

class Panel {
  // `tab`: the tab of the e-graph, which opens e-classes and keeps the selection.
  constructor(graph, tab, host) {
    Object.assign(this, { g: graph, tab, host });
    this.element = el("aside", { "aria-live": "polite" });
  }
  show(parts) { this.element.replaceChildren(...parts.filter(Boolean)); this.element.scrollTop = 0; }
  // ------------------------------------------------------------ references
  ref(c, text = "c" + c) { return el("button", { class: "ref", onclick: (e) => { e.stopPropagation(); this.tab.select(c); } }, text); }
  refs(classes) { return Array.from(classes).flatMap((c, i) => [i ? ", " : "", this.ref(c)]); }
  kernelRef(k) { return el("button", { class: "ref", onclick: (e) => { e.stopPropagation(); this.tab.showKernel(k); } }, `${this.g.kernel.at(k)} k${k}`); }
  kernelRefs(kernels) { return kernels.map((k, i) => [i ? " + " : "", this.kernelRef(k), ` ${time(this.g.us[k])}`]); }
  price(k) { const source = this.g.price.at(k); return el("span", { title: PRICES[source] ?? "" }, source); }
  // The name of a rule; a click shows its sides below it.
  ruleRef(name) {
    const text = this.g.ruleText(name);
    if (!text) return name;
    const shown = el("div", { class: "rule", hidden: true }, text);
    return [el("button", { class: "ref", title: text, onclick: (e) => { e.stopPropagation(); shown.hidden = !shown.hidden; } }, name), shown];
  }
  most(items, limit, row) {
    const first = items.slice(0, limit).map(row);
    if (items.length <= limit) return first;
    const more = el("button", { class: "tiny", onclick: () => more.replaceWith(...items.slice(limit, limit + 200).map(row)) }, `${items.length - limit} more`);
    return [...first, more];
  }
  // ------------------------------------------------------------ an e-class
  classDetails(c) {
    const { g, tab } = this, users = [...new Set(Array.from(g.usersOf(c), (n) => g.owner[n]))].filter((u) => u !== c);
    const nodes = g.listed(c), makers = g.ranked(g.makersOf(c)), fusers = g.ranked(Array.from(g.fusersOf(c)).filter((k) => !g.makersOf(c).includes(k)));
    const tags = [g.root[c] ? "output" : "", g.layer.at(c) ? `layer ${g.layer.at(c)}` : "", g.weight[c] ? "weights only: computed at load" : "", g.age[c] > 0 ? `since iteration ${g.age[c]}` : g.age[c] === 0 ? "value of the model" : ""].filter(Boolean);
    return [el("h2", {}, `c${c}  ${g.types.at(c)}`), el("p", {}, tags.map((t) => el("span", { class: "chip" }, t)), g.kernels ? el("button", { class: "tiny", "aria-pressed": String(tab.marked.has(c)), title: "mark e-classes to ask what fusing them would cost (or shift-click)", onclick: () => tab.mark(c) }, "mark for fusing") : ""),
      g.kernels ? el("p", {}, ...this.verdict(c, makers)) : null,
      el("p", {}, users.length ? ["read by ", this.refs(users.slice(0, 12)), users.length > 12 ? ` and ${users.length - 12} more ` : " ", el("button", { class: "tiny", onclick: () => tab.add(users.slice(0, OPEN_AT_ONCE), c) }, "show")] : "read by nothing else"),
      el("h3", {}, `${nodes.length} equal ${nodes.length === 1 ? "form" : "forms"}`), ...this.most(nodes, 12, (n) => this.nodeRow(n)),
      ...(makers.length ? [el("h3", {}, `${many(makers.length, "kernel")} that ${makers.length === 1 ? "writes" : "write"} it`), ...this.most(makers, 8, (k) => this.kernelRow(k, c))] : []),
      ...(fusers.length ? [el("h3", {}, `${many(fusers.length, "kernel")} that ${fusers.length === 1 ? "computes" : "compute"} it inside`), ...this.most(fusers, 4, (k) => this.kernelRow(k, c))] : [])];
  }
  // Why the chosen kernel of a value is chosen, or why there is none, as sentences.
  verdict(c, makers) {
    const { g } = this, k = g.planned(c), inside = g.inside(c);
    if (k === undefined && inside !== undefined) return ["Not written to memory: ", this.kernelRef(inside), " computes it inside, on the way to ", ...this.refs(Array.from(g.out(inside), (p) => g.placeClass[p])), "."];
    if (k === undefined && g.isGiven(c)) return ["Given by the caller: no kernel is needed."];
    if (k === undefined) return g.weight[c] ? ["Depends on weights alone: no kernel is needed."] : this.absence(c);
    if (g.isView[k]) return ["Chosen: a view of ", ...this.refs(Array.from(g.input(k), (p) => g.placeClass[p])), ", no work."];
    const rival = makers.find((m) => m !== k && !g.isView[m] && g.us[m] < Infinity);
    const sentence = ["Chosen: ", this.kernelRef(k), ` at ${time(g.us[k])} (`, this.price(k), "). "];
    if (rival === undefined) return [...sentence, "No other kernel writes it."];
    const missing = g.missing(rival), more = missing.classes.length > 0;
    sentence.push("Next: ", this.kernelRef(rival), ` at ${time(g.us[rival])} (`, this.price(rival), more ? ") alone, but it reads " : "). ");
    if (more) sentence.push(...this.refs(missing.classes), `, which the plan does not compute: at least ${time(missing.us)} more, in all ${time(g.us[rival] + missing.us)}. `);
    if (g.pinned[rival] >= 0) sentence.push(g.pinned[rival] === Infinity ? "No plan can use it." : `With it, the whole plan takes ${time(g.pinned[rival])} (${g.change(rival, g.pinned[rival])}).`);
    return sentence;
  }
  // Why the plan does not compute a value: what it computes of the values that read it.
  absence(c) {
    const { g } = this, found = g.reader(c), other = found ?? g.reader(c, false);
    if (!other) return ["The plan does not compute it: nothing that it computes needs it."];
    if (!found) return ["The plan does not compute it: it belongs to another form of ", this.ref(other.cls), ", whose chosen form is computed by ", this.kernelRef(other.kernel), "."];
    return ["The plan does not compute it: ", this.ref(found.cls), ", for which the model needs it, is computed in another form, by ", this.kernelRef(found.kernel), "."];
  }
  nodeRow(n) {
    const { g, host } = this, children = Array.from(g.children(n));
    const text = g.name.at(n) ? [g.op.at(n), " ", el("b", {}, g.name.at(n))] : [g.op.at(n), "(", this.refs(children), g.attrs.at(n) ? (children.length ? ", " : "") + g.attrs.at(n) : "", ")"];
    return el("div", { class: "row" + (g.chosen[n] ? " chosen" : "") },
      el("div", { class: "top" }, el("code", {}, ...text.flat(3)), el("span", { class: "soft small" }, `n${n}`)),
      el("div", { class: "soft small" }, this.origin(n), this.asks("n" + n), g.rule.at(n) && host.ask ? [" ", el("button", { class: "tiny", onclick: () => this.ask({ forbid: ["rule:" + g.rule.at(n)] }) }, "without this rule")] : ""));
  }
  // The rule that made an e-node, and from which.
  origin(n) {
    const { g } = this, start = g.from[n];
    if (g.own[n]) return "in the model";
    if (!g.rule.at(n)) return g.ruled ? "rule unknown" : "";
    const from = start < 0 ? "" : [" from ", g.owner[start] === g.owner[n] ? `n${start} ${g.op.at(start)}` : this.ref(g.owner[start], `n${start}`)];
    return ["by ", this.ruleRef(g.rule.at(n)), from, g.rules.at(n) ? `; also ${g.rules.at(n)}` : ""];
  }
  // ------------------------------------------------------------ kernels
  kernelRow(k, c) {
    const { g } = this, share = g.share(k), longest = Math.max(g.us[k], 0.001);
    const plan = g.step[k] >= 0 ? (g.without[k] >= 0 ? `in the plan; without it ${g.without[k] === Infinity ? "there is no plan" : g.change(k, g.without[k])}` : "in the plan") : g.pinned[k] >= 0 ? (g.pinned[k] === Infinity ? "no plan uses it" : `plan with it ${g.change(k, g.pinned[k])}`) : "";
    const others = Array.from(g.out(k), (p) => g.placeClass[p]).filter((o) => o !== c), read = [...new Set(Array.from(g.input(k), (p) => g.placeClass[p]))];
    const reads = read.length ? `, reads ${read.slice(0, 6).map((i) => "c" + i).join(", ")}${read.length > 6 ? ", …" : ""}` : "";
    return el("div", { class: "row link" + (g.step[k] >= 0 ? " chosen" : ""), tabIndex: 0, onclick: () => this.tab.showKernel(k), onkeydown: (e) => { if (e.key === "Enter") this.tab.showKernel(k); } },
      el("div", { class: "top" }, el("span", {}, `${g.kernel.at(k)} `, el("span", { class: "soft small" }, `k${k} ${g.backend.at(k)}${g.covers(k).length > 1 ? `, ${g.covers(k).length} ops` : ""}${reads}${others.length ? ", writes " + others.map((o) => "c" + o).join(", ") : ""}`)),
        el("span", { class: "num" }, g.isView[k] ? "view" : time(g.us[k]), " ", el("span", { class: "soft small" }, g.isView[k] ? "" : this.price(k)))),
      share > 0 ? el("div", { class: "meter", title: "shaded: time; solid: limit of the machine" }, this.width("i", g.us[k] / longest), this.width("b", share)) : null,
      el("div", { class: "soft small" }, [share > 0 ? `${Math.round(100 * share)} % of the limit` : g.price.at(k) === "bound" && !g.isView[k] ? "priced at the machine's limit" : "", plan].filter(Boolean).join("; "), this.asks("k" + k)));
  }
  width(tag, part) { const made = el(tag); made.style.width = `${(100 * Math.min(1, part)).toFixed(1)}%`; return made; }
  kernelDetails(k) {
    const { g } = this, share = g.share(k), replaced = g.replaced(k), sum = replaced.reduce((s, p) => s + g.us[p], 0);
    const line = (name, ...value) => el("tr", {}, el("th", {}, name), el("td", {}, ...value.flat(3)));
    const interval = g.low[k] < g.us[k] || g.high[k] > g.us[k] ? `, ${time(g.low[k])} to ${time(g.high[k])}` : "";
    const asked = g.step[k] >= 0 ? ["without it", g.without[k], "there is no plan"] : ["with it", g.pinned[k], "no plan uses it"];
    return [el("h2", {}, g.kernel.at(k)), el("p", { class: "soft" }, `candidate k${k} of backend ${g.backend.at(k)}`, g.step[k] >= 0 ? el("b", { class: "good" }, g.number.has(k) ? ` in the plan, kernel ${g.number.get(k)} of ${g.number.size}` : " in the plan") : "", this.asks("k" + k)),
      el("table", {}, line("writes", this.refs(Array.from(g.out(k), (p) => g.placeClass[p]))), line("reads", this.refs(Array.from(g.input(k), (p) => g.placeClass[p]))),
        g.isView[k] ? null : [line("time", time(g.us[k]), " ", this.price(k), interval),
          line("limit", Number.isFinite(g.limit[k]) ? [time(g.limit[k]), Number.isFinite(g.flops[k]) ? `: ${scaled(g.flops[k], "flop")}, ${scaled(g.bytes[k], "B")}` : ""] : "unknown", share > 0 ? ` (${Math.round(100 * share)} % of it reached; ${time(g.lost(k))} lost)` : g.price.at(k) === "bound" ? " (not measured: priced at this limit)" : ""),
          line("error", Number.isFinite(g.error[k]) ? g.error[k].toExponential(2) : "not measured"),
          g.schedule.at(k) ? line("schedule", g.schedule.at(k)) : null,
          line(asked[0], asked[1] >= 0 ? (asked[1] === Infinity ? asked[2] : `the whole plan takes ${time(asked[1])} (${g.change(k, asked[1])})`) : "not asked")]),
      replaced.length ? el("p", {}, `It would replace ${many(replaced.length, "kernel")} of the plan: `, this.kernelRefs(replaced), ` = ${time(sum)}; itself ${time(g.us[k])} (${signed(g.us[k] - sum)}).`) : null,
      g.computes.at(k) ? el("h3", {}, "computes") : null, g.computes.at(k) ? el("pre", {}, g.computes.at(k)) : null,
      g.source.at(k) ? el("h3", {}, "source") : null, g.source.at(k) ? el("pre", {}, g.source.at(k)) : null,
      g.launch.length ? [el("h3", {}, "in Python"), el("pre", {}, `explorer.what_if(${g.step[k] >= 0 ? "forbid" : "pin"}=["k${k}"])`)] : null].flat();
  }
  // ------------------------------------------------------------ fusing
  fusing() {
    const { g } = this, ids = [...this.tab.marked];
    const found = ids.length ? g.ranked(ids.map((c) => new Set(g.fusersOf(c))).reduce((a, b) => new Set([...a].filter((k) => b.has(k))))) : [];
    return [el("h2", {}, ids.length ? `Fusing ${ids.map((c) => "c" + c).join(" and ")}` : "Fusing"),
      el("p", { class: "soft" }, "Marks: shift-click on boxes, or the button of an e-class. ", ids.length ? el("button", { class: "tiny", onclick: () => this.tab.unmark() }, "clear marks") : ""),
      ...(ids.length < 2 ? [el("p", {}, "Mark a second value.")] : [...this.fusingNow(ids),
        found.length ? el("h3", {}, "Candidate kernels that compute all marked values") : el("p", {}, "No candidate kernel computes these together: the backends have none and generate none."),
        ...found.slice(0, 30).flatMap((k) => [this.kernelRow(k, -1), this.gain(k)])])];
  }
  // What marked values take in the plan, and what one kernel for them could take.
  fusingNow(ids) {
    const { g } = this, now = g.together(ids);
    const lacking = ids.filter((c) => !now.makers.has(c) && !g.weight[c]);
    const sentences = lacking.length ? [el("p", {}, "The plan does not compute ", ...this.refs(lacking), ".")] : [];
    if (!now.kernels.length) return sentences;
    if (now.kernels.length === 1) return [...sentences, el("p", {}, "In the plan one kernel computes them: ", this.kernelRefs(now.kernels), ".")];
    sentences.push(el("p", {}, "In the plan: ", this.kernelRefs(now.kernels), ` = ${time(now.us)}.`));
    if (!(now.least > 0)) return sentences;
    const saved = Math.max(0, now.between), kept = now.passed.length ? ` and writing and reading ${now.passed.map((c) => "c" + c).join(", ")}` : "";
    sentences.push(el("p", {}, `Fusing saves about ${time(saved)}: ${many(now.kernels.length - 1, "launch", "launches")}${kept}. A fused kernel at the machine's limit would take ${time(now.least)}, ${time(Math.max(0, now.us - now.least))} less than now.`));
    return sentences;
  }
  gain(k) {
    const { g } = this, replaced = g.replaced(k), sum = replaced.reduce((s, p) => s + g.us[p], 0);
    return g.step[k] < 0 && replaced.length ? el("p", { class: "soft small" }, "replaces ", this.kernelRefs(replaced), `: ${signed(g.us[k] - sum)}`) : null;
  }
  // ------------------------------------------------------------ questions
  // Buttons that ask live what-if questions, where a Python process listens.
  asks(selector) {
    if (!this.host.ask) return "";
    const ask = (kind) => (e) => { e.stopPropagation(); this.ask({ [kind]: [selector] }); };
    return el("span", {}, " ", el("button", { class: "tiny", onclick: ask("forbid") }, "forbid"), " ", el("button", { class: "tiny", onclick: ask("pin") }, "pin"));
  }
  async ask(question) {
    const box = el("div", { class: "row" }, "asking…");
    this.element.prepend(box);
    this.element.scrollTop = 0;
    const answer = await this.host.ask(question);
    if (answer.error) { box.replaceChildren(el("b", { class: "bad" }, "no answer: "), answer.error); return; }
    const change = (sign, k) => el("div", { class: "small" }, `${sign} `, this.kernelRef(Number(k.kernel.slice(1))), ` → ${k.made} ${time(k.us)} ${k.source}`);
    box.replaceChildren(el("b", {}, answer.question), el("p", {}, `${time(answer.before_us)} → ${time(answer.after_us)} (${signed(answer.difference_us)}${answer.optimal ? ", proven optimal" : ""})`),
      ...(answer.removed.length || answer.added.length ? [] : [el("div", { class: "small" }, "The plan stays as it is.")]),
      ...answer.removed.map((k) => change("−", k)), ...answer.added.map((k) => change("+", k)), ...answer.unused.map((k) => el("div", {}, `${k}: no output needs its result`)));
  }
}
