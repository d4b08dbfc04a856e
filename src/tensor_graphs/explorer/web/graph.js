// Indexes of the columns, made once.
class Graph {
  constructor(data) {
    this.data = data;
    const n = (name) => data.numbers(name), t = (name) => data.texts(name), l = (name) => data.lists(name);
    Object.assign(this, {
      types: t("class.type"), layer: t("class.layer"), weight: n("class.weight"), root: n("class.root"), age: n("class.age"),
      owner: n("node.class"), op: t("node.op"), name: t("node.name"), attrs: t("node.attrs"), children: l("node.kid"),
      own: n("node.own"), since: n("node.age"), rule: t("node.rule"), rules: t("node.rules"), from: n("node.from"),
      placeClass: n("place.class"), layout: t("place.layout"), given: n("place.given"),
      kernel: t("kernel.name"), backend: t("kernel.backend"), isView: n("kernel.view"), us: n("kernel.us"), low: n("kernel.low"),
      high: n("kernel.high"), price: t("kernel.price"), schedule: t("kernel.schedule"), limit: n("kernel.limit"),
      flops: n("kernel.flops"), bytes: n("kernel.bytes"), error: n("kernel.error"), step: n("kernel.step"),
      out: l("kernel.out"), input: l("kernel.in"), covers: l("kernel.node"), source: t("kernel.source"),
      computes: t("kernel.computes"), operands: t("kernel.operands"), size: n("class.bytes"), launch: n("kernel.launch"), byteRate: n("kernel.byte_rate"), flopRate: n("kernel.flop_rate"), pinned: n("kernel.pinned"), without: n("kernel.without"), proven: n("kernel.proven"),
    });
    this.classes = this.types.length; this.nodes = this.owner.length; this.kernels = this.kernel.length;
    const each = (count, items, key) => (put) => { for (let i = 0; i < count; i++) for (const x of items(i)) put(key(x), i); };
    this.nodesOf = grouped(this.classes, (put) => { for (let i = 0; i < this.nodes; i++) put(this.owner[i], i); });
    this.usersOf = grouped(this.classes, each(this.nodes, this.children, (child) => child));
    this.makersOf = grouped(this.classes, each(this.kernels, this.out, (place) => this.placeClass[place]));
    this.fusersOf = grouped(this.classes, each(this.kernels, this.covers, (node) => this.owner[node]));
    this.plan = [];
    for (let k = 0; k < this.kernels; k++) if (this.step[k] >= 0) this.plan[this.step[k]] = k;
    this.number = new Map(this.plan.filter((k) => !this.isView[k]).map((k, i) => [k, i + 1]));
    const names = t("rule.name"), texts = t("rule.text"), docs = t("rule.doc");
    this.ruleTexts = new Map(Array.from(names.codes, (_, i) => [names.at(i), texts.at(i) + (docs.at(i) ? `\n${docs.at(i)}` : "")]));
    this.ruled = this.rule.dict.some(Boolean);
    const ops = t("op.name"), also = t("op.also");
    this.also = new Map(Array.from(ops.codes, (_, i) => [ops.at(i), also.at(i).toLowerCase()]));
    this.total = this.plan.reduce((s, k) => s + this.us[k], 0);
    this.chosen = new Uint8Array(this.nodes);
    this.coveredBy = new Map();
    for (const k of this.plan) for (const node of this.covers(k)) {
      this.chosen[node] = 1;
      if (!this.isView[k] && !this.coveredBy.has(this.owner[node])) this.coveredBy.set(this.owner[node], k);
    }
  }
  childrenOf(cls) { const found = new Set(); for (const n of this.nodesOf(cls)) for (const k of this.children(n)) found.add(k); return [...found]; }
  // The sides of a rule as text, "" for an unknown one.
  ruleText(name) { return this.ruleTexts.get(name) ?? ""; }
  // The operation of the model that an e-class holds, or its first e-node.
  modelOp(cls) { const nodes = Array.from(this.nodesOf(cls)); return this.op.at(nodes.find((n) => this.own[n]) ?? nodes[0]); }
  // The e-classes that read an e-class of weights, past others of weights.
  readers(cls) {
    const found = new Set(), seen = new Set([cls]), queue = [cls];
    while (queue.length && seen.size < 200) for (const n of this.usersOf(queue.shift())) {
      const user = this.owner[n];
      if (seen.has(user)) continue;
      seen.add(user);
      if (this.weight[user]) queue.push(user); else if (this.own[n]) found.add(user);
    }
    return [...found];
  }
  // Names of the weights that an e-class of weights is made of, at most four.
  weightNames(cls) {
    const found = new Set(), seen = new Set(), queue = [cls];
    while (queue.length && seen.size < 50 && found.size < 4) {
      const c = queue.shift();
      if (seen.has(c) || !this.weight[c]) continue;
      seen.add(c);
      const nodes = Array.from(this.nodesOf(c)), leaf = nodes.find((n) => this.name.at(n));
      if (leaf !== undefined) found.add(this.name.at(leaf)); else for (const n of nodes) for (const child of this.children(n)) queue.push(child);
    }
    return [...found];
  }
  // The layer of a kernel: that of its results, else that of the weights it reads, or their names.
  layerOf(k) {
    const own = Array.from(this.out(k), (p) => this.layer.at(this.placeClass[p])).find(Boolean);
    if (own || !this.layer.dict.some(Boolean)) return own ?? "";
    const names = Array.from(this.input(k)).flatMap((p) => this.weightNames(this.placeClass[p]));
    return [...new Set(names.map((n) => n.slice(0, Math.max(0, n.lastIndexOf("."))) || n))].slice(0, 2).join(", ");
  }
  // Whether the caller gives an e-class: an input or a state.
  isGiven(cls) { return Array.from(this.nodesOf(cls)).some((n) => this.op.at(n) === "input" || this.op.at(n) === "state"); }
  // What an answer computed in advance changes in the time of the whole plan, as text; answers without a proof are upper bounds.
  change(k, us) { return (this.proven[k] === 0 && us > this.total ? "at most " : "") + signed(us - this.total); }
  // The nearest reader of a value that the plan computes, by operations of the model alone if `own`: {cls, kernel};
  // undefined if there is none.
  reader(cls, own = true) {
    const seen = new Set([cls]), queue = [cls];
    while (queue.length && seen.size < 500) for (const n of this.usersOf(queue.shift())) {
      const user = this.owner[n];
      if (seen.has(user) || (own && !this.own[n])) continue;
      const made = this.planned(user), kernel = made !== undefined && !this.isView[made] ? made : this.inside(user);
      if (kernel !== undefined) return { cls: user, kernel };
      seen.add(user); queue.push(user);
    }
    return undefined;
  }
  // The kernel of the plan that computes a value without writing it.
  inside(cls) { return this.coveredBy.get(cls); }
  // The kernels of the plan all of whose results another kernel computes as well.
  replaced(k) {
    const classes = new Set(Array.from(this.covers(k), (n) => this.owner[n]));
    return classes.size > 1 && this.step[k] < 0 ? this.plan.filter((p) => p !== k && !this.isView[p] && Array.from(this.out(p)).every((o) => classes.has(this.placeClass[o]))) : [];
  }
  // Time above the limit of the machine; 0 where it is unknown.
  lost(k) { return this.share(k) > 0 ? Math.max(0, this.us[k] - this.limit[k]) : 0; }
  planned(cls) { return this.makersOf(cls).find((k) => this.step[k] >= 0); }
  label(node) {
    if (this.name.at(node)) return `${this.op.at(node)} ${this.name.at(node)}`;
    const children = Array.from(this.children(node), (k) => "c" + k).join(", "), attrs = this.attrs.at(node);
    return `${this.op.at(node)}(${[children, attrs].filter(Boolean).join(", ")})`;
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
    const maker = (c) => this.planned(c) ?? this.inside(c), makers = new Map(classes.map((c) => [c, maker(c)]).filter(([, k]) => k !== undefined));
    const behind = (p) => { const made = (q) => this.makersOf(this.placeClass[q]).find((m) => this.step[m] >= 0); for (let left = this.plan.length, k = made(p); left > 0 && k !== undefined && this.isView[k] && this.input(k).length; left--) { p = this.input(k)[0]; k = made(p); } return this.placeClass[p]; };
    const kernels = [...new Set(makers.values())].filter((k) => !this.isView[k] && this.limit[k] > 0);
    const made = new Set(kernels.flatMap((k) => Array.from(this.out(k), (p) => this.placeClass[p])));
    const sum = (of) => kernels.reduce((s, k) => s + of(k), 0), most = (of) => kernels.reduce((s, k) => Math.max(s, of(k)), 0);
    const passed = new Set(kernels.flatMap((k) => Array.from(this.input(k), behind)).filter((c) => made.has(c)));
    const bytes = sum((k) => this.bytes[k]) - 2 * [...passed].reduce((s, c) => s + this.size[c], 0);
    const least = most((k) => this.launch[k]) + Math.max(Math.max(0, bytes) / most((k) => this.byteRate[k]), sum((k) => this.flops[k]) / most((k) => this.flopRate[k]));
    return { makers, kernels, us: sum((k) => this.us[k]), passed: [...passed], least, between: sum((k) => this.limit[k]) - least };
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
