// The tab of the plan: its kernels with time, share, limit, what is lost against it, and the plan's cost without each.
function planTab(graph, go) {
  const all = graph.plan.filter((k) => !graph.isView[k]), real = all.filter((k) => UNIT || graph.us[k] > 0), sum = (of) => real.reduce((s, k) => s + of(k), 0);
  const longest = real.reduce((most, k) => Math.max(most, graph.us[k]), 1e-9), lost = sum((k) => graph.lost(k));
  const bar = (k) => {
    const i = el("i"), b = el("b");
    i.style.width = `${(100 * graph.us[k]) / longest}%`; b.style.width = `${(100 * Math.min(graph.limit[k] || 0, graph.us[k])) / longest}%`;
    return el("div", { class: "meter", title: "shaded: time; solid: limit of the machine" }, i, b);
  };
  // header, value to sort by, cell
  const columns = [
    ["", (k) => -graph.number.get(k), (k) => el("td", { class: "num soft" }, String(graph.number.get(k)))],
    [UNIT ? "kernel" : "e-node", null, (k) => el("td", {}, el("button", { class: "ref", onclick: () => go(k) }, graph.kernel.at(k)), el("span", { class: "soft small" }, `  ${graph.layerOf(k)}`), el("div", { class: "soft small" }, graph.computes.at(k).slice(0, 120)), bar(k))],
    [UNIT ? "time" : "cost", (k) => graph.us[k], (k) => el("td", { class: "num" }, time(graph.us[k]), UNIT ? el("div", { class: "soft small", title: PRICES[graph.price.at(k)] ?? "" }, graph.price.at(k)) : null)],
    ["share", (k) => graph.us[k], (k) => el("td", { class: "num" }, `${((100 * graph.us[k]) / graph.total).toFixed(1)} %`)],
    ["of limit", (k) => -graph.share(k), (k) => el("td", { class: "num" }, graph.share(k) > 0 ? `${Math.round(100 * graph.share(k))} %` : "–"), (k) => graph.share(k) > 0],
    ["lost", (k) => graph.lost(k), (k) => el("td", { class: "num" }, graph.share(k) > 0 ? time(graph.lost(k)) : "–"), (k) => graph.share(k) > 0],
    ["without it", (k) => graph.without[k], (k) => el("td", { class: "num" }, graph.without[k] >= 0 ? (graph.without[k] === Infinity ? "no plan" : graph.change(k, graph.without[k])) : "–"), (k) => graph.without[k] >= 0],
  ].filter(([, , , known]) => !known || real.some(known));
  const shown = real.length <= MOST_ROWS ? real : [...real].sort((a, b) => graph.us[b] - graph.us[a]).slice(0, MOST_ROWS);
  const body = el("tbody"), heads = columns.map(([name, value], i) => el("th", { class: i === 1 ? "" : "num" }, value ? el("button", { class: "head", title: "sort", onclick: () => sort(i) }, name || "#") : name));
  const sort = (i) => {
    const value = columns[i][1], order = (k) => { const v = value(k); return Number.isNaN(v) ? -Infinity : v; };
    heads.forEach((h, n) => h.setAttribute("aria-sort", n === i ? (i === 0 ? "ascending" : "descending") : "none"));
    body.replaceChildren(...[...shown].sort((a, b) => order(b) - order(a) || graph.number.get(a) - graph.number.get(b)).map((k) => el("tr", {}, columns.map(([, , cell]) => cell(k)))));
  };
  sort(0);
  return el("div", { class: "scroll" }, el("h2", {}, UNIT ? `${many(real.length, "kernel")}, ${time(graph.total)}` : `${many(real.length, "e-node")} with a cost, ${time(graph.total)}`),
    ...planNotes(graph, real, lost), real.length < all.length ? el("p", { class: "soft" }, `${many(all.length - real.length, "further e-node")} of the choice cost nothing.`) : "",
    el("table", {}, el("thead", {}, el("tr", {}, heads)), body), shown.length < real.length ? el("p", { class: "soft" }, `The ${MOST_ROWS} most expensive of ${count(real.length)}.`) : null);
}

// Sentences about what is lost against the limits, and about kernels that were not measured.
function planNotes(graph, real, lost) {
  if (!UNIT) return [];
  const notes = [], most = [...real].sort((a, b) => graph.lost(b) - graph.lost(a))[0];
  if (lost > 0) notes.push(`${time(lost)} are lost against the limits of the machine (launch, traffic and arithmetic at the rates of its roofline), most in kernel ${graph.number.get(most)}, ${graph.kernel.at(most)}: ${time(graph.lost(most))}.`);
  const guessed = real.filter((k) => !["measured", "shipped"].includes(graph.price.at(k))).length;
  if (guessed) notes.push(`${guessed === real.length ? "No kernel of it was" : `${guessed} of its kernels were not`} measured: times are predictions or bounds. tg.optimize(model), or tensor-graphs profile MODEL, measures what the best plan needs, as far as its budget allows; the e-graph then shows these times.`);
  return notes.map((text) => el("p", { class: "soft" }, text));
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

const LEAVES = ["param", "constant", "full"]; // named in the operations that read them

// Whether each node of a table of terms depends on weights and numbers alone; operands come first.
function heldBy(op, args) {
  const held = new Uint8Array(op.length);
  for (let t = 0; t < op.length; t++) held[t] = LEAVES.includes(op.at(t)) || (args(t).length > 0 && Array.from(args(t)).every((a) => held[a])) ? 1 : 0;
  return held;
}

// Names of the weights that a node of weights is made of, at most four, found in at most 500 nodes.
function namesOf(t, op, name, args) {
  const found = new Set(), queue = [t], seen = new Set(queue);
  while (queue.length && found.size < 4) {
    const x = queue.pop();
    if (LEAVES.includes(op.at(x))) found.add(name.at(x) || op.at(x));
    else for (const a of args(x)) if (seen.size < 500 && !seen.has(a)) { seen.add(a); queue.push(a); }
  }
  return [...found].join(" ");
}

// The detail line of an operation: its type, its layer or the names of the weights it reads.
function detailOf(op, name, type, args, held, layer) {
  return (t) => [type.at(t), layer?.at(t) || Array.from(args(t)).filter((a) => held[a]).map((a) => namesOf(a, op, name, args)).join(" ")].filter(Boolean).join("  ");
}

// Show a graph on a term board: `ids` outputs last, `args(id)` its operands.
function showTerm(view, ids, args, focus, wide = 224) {
  const users = new Map(ids.map((id) => [id, []])), edges = [];
  for (const id of ids) for (const a of new Set(args(id))) if (users.has(a)) { users.get(a).push(id); edges.push({ from: a, to: id }); }
  view.board.show(layered(ids, (id) => users.get(id), () => [wide, 42]), edges);
  if (focus?.length) view.board.fit(focus, 0.8, 0.5); else view.board.fit(null, 0.9, 0.55);
}

function modelTab(data, graph, go) {
  const op = data.texts("model.op"), name = data.texts("model.name"), type = data.texts("model.type"), cls = data.numbers("model.class"), args = data.lists("model.arg");
  const held = heldBy(op, args), kept = Array.from(op.codes.keys()).filter((id) => !held[id]);
  const left = termBoard(`the model, simplified: ${many(kept.length, "operation")}`, (id) => { if (cls[id] >= 0) go.select(cls[id]); });
  const right = termBoard(`the plan: ${many(graph.number.size, "kernel")}; orange: more than a fifth of the time`, (id) => { if (typeof id === "number") go.kernel(id); });
  left.state.label = (id) => `${op.at(id)} ${name.at(id)}`; left.state.detail = detailOf(op, name, type, args, held, data.texts("model.layer"));
  const maker = new Map(graph.plan.flatMap((k) => Array.from(graph.out(k), (p) => [p, k])));
  const through = (p) => { for (let left = maker.size; left > 0 && maker.has(p) && graph.isView[maker.get(p)]; left--) p = graph.input(maker.get(p))[0]; return p; };
  const real = [...graph.number.keys()];
  const reads = (k) => (typeof k === "string" ? [] : Array.from(graph.input(k), (p) => maker.get(through(p)) ?? "given " + graph.placeClass[through(p)]));
  const leaf = (c) => { const n = Array.from(graph.nodesOf(c)).find((i) => graph.name.at(i)); return n === undefined ? (graph.weight[c] ? `weights c${c}` : `c${c}`) : `${graph.op.at(n)} ${graph.name.at(n)}`; };
  right.state.label = (k) => (typeof k === "string" ? leaf(Number(k.slice(6))) : `${graph.number.get(k)}. ${graph.kernel.at(k)}  ${time(graph.us[k])}`);
  right.state.detail = (k) => (typeof k === "string" ? graph.types.at(Number(k.slice(6))) : [graph.layerOf(k), graph.computes.at(k)].filter(Boolean).join(": "));
  for (const k of real) right.state.mark.set(k, graph.us[k] > 0.2 * graph.total ? "warn" : "good");
  const shown = () => {
    showTerm(left, kept, args);
    const givens = new Set(real.flatMap(reads).filter((r) => typeof r === "string" && !graph.weight[Number(r.slice(6))]));
    showTerm(right, [...givens, ...real], reads, null, 330);
  };
  return { element: el("div", { class: "tab" }, el("div", { class: "pair" }, left.element, right.element)), shown };
}

// The tab of the rewriting: the steps in order; the whole term before and after, with what changed.
function rewriteTab(data, graph) {
  const op = data.texts("term.op"), name = data.texts("term.name"), type = data.texts("term.type"), args = data.lists("term.arg");
  const column = (c) => data.numbers("step." + c), rule = data.texts("step.rule"), forward = column("forward"), output = column("output");
  const [old, now, before, after] = ["old", "new", "before", "after"].map(column);
  const below = (root) => { const seen = new Set(), order = []; const visit = [[root, false]]; while (visit.length) { const [t, done] = visit.pop(); if (done) { order.push(t); continue; } if (seen.has(t)) continue; seen.add(t); visit.push([t, true]); for (const a of args(t)) visit.push([a, false]); } return order; };
  const left = termBoard("before"), right = termBoard("after");
  const held = heldBy(op, args);
  for (const side of [left, right]) { side.state.label = (t) => `${op.at(t)} ${name.at(t)}`; side.state.detail = detailOf(op, name, type, args, held); }
  // What is shown: for each output all its steps at once, then every step. [title, from, to, what changed before and after, caption]
  const outputs = [...new Set(output)], changed = (list, other) => { const known = new Set(other); return list.filter((t) => !known.has(t)); };
  const whole = outputs.map((o) => {
    const steps = Array.from(output.keys()).filter((i) => output[i] === o), [was, is] = [old[steps[0]], now[steps.at(-1)]];
    return { title: `${outputs.length > 1 ? `output ${o}: ` : ""}all ${many(steps.length, "step")}`, was, is, from: was, to: is, before: "the model", after: "the chosen form: new parts are green" };
  });
  const single = Array.from(rule.codes.keys(), (i) => ({
    title: `${i + 1}. ${rule.at(i)}${forward[i] ? "" : " (right to left)"}`, was: old[i], is: now[i], from: before[i], to: after[i],
    before: `step ${i + 1} of ${rule.length}${outputs.length > 1 ? `, output ${output[i]}` : ""}: before ${rule.at(i)}`,
    after: graph.ruleText(rule.at(i)).split("\n")[0] || "after: new parts are green",
  }));
  // Operations without an equal one (same op, attributes and type) in the other list: below a change every term is another.
  const unlike = (list, other) => {
    const key = (t) => [op.at(t), name.at(t), type.at(t)].join(" "), left = new Map();
    for (const t of other) left.set(key(t), (left.get(key(t)) ?? 0) + 1);
    return list.filter((t) => { const n = left.get(key(t)) ?? 0; left.set(key(t), n - 1); return n <= 0; });
  };
  const views = [...whole, ...single];
  let shown = 0;
  const buttons = views.map((v, i) => el("button", { onclick: () => show(i) }, v.title));
  const show = (i) => {
    shown = Math.max(0, Math.min(views.length - 1, i));
    buttons.forEach((b, n) => b.setAttribute("aria-pressed", String(n === shown)));
    buttons[shown].scrollIntoView({ block: "nearest" });
    const v = views[shown], all = shown < whole.length, differ = all ? unlike : changed;
    const gone = differ(below(v.from), below(v.to)), made = differ(below(v.to), below(v.from));
    left.state.mark = new Map([...(all ? [] : [v.from]), ...gone].map((t) => [t, "bad"]));
    right.state.mark = new Map([...(all ? [] : [v.to]), ...made].map((t) => [t, "good"]));
    left.caption.textContent = v.before; right.caption.textContent = v.after;
    const boxed = (list) => list.filter((t) => !held[t]), focus = (list) => (all ? null : list);
    showTerm(left, boxed(below(v.was)), args, focus([...gone, v.from]), 270); showTerm(right, boxed(below(v.is)), args, focus([...made, v.to]), 270);
  };
  const bar = el("div", { class: "bar" }, el("button", { onclick: () => show(shown - 1) }, "previous"), el("button", { onclick: () => show(shown + 1) }, "next"));
  const list = el("div", { class: "steps" }, rule.length ? bar : null, rule.length ? buttons : el("p", { class: "soft" }, "The chosen form is the model's own: no rule was needed."));
  return { element: el("div", { class: "tab" }, list, el("div", { class: "pair" }, left.element, right.element)), shown: () => { if (rule.length) show(0); } };
}
