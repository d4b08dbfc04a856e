// The viewer: an e-graph with its kernels, the plan, the rewrites and the model.

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
  if (data.columns.has("step.rule")) tabs.set("Rewrites", rewriteTab(data, graph));
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
