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
