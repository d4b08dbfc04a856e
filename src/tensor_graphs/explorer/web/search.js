// Search over the e-graph: ids, layers, weights with the operations that read them, ops, rules, kernels, types.

const MOST_FOUND = 60;

// E-classes that match a text, each with the reason: a map from e-class to text, best matches first.
function searched(g, text) {
  const found = new Map(), note = (c, why) => { if (!found.has(c) && found.size < MOST_FOUND) found.set(c, why); };
  const exact = /^([cnk])(\d+)$/.exec(text);
  if (exact) {
    const i = Number(exact[2]);
    if (exact[1] === "c" && i < g.classes) note(i, "e-class");
    if (exact[1] === "n" && i < g.nodes) note(g.owner[i], g.label(i));
    if (exact[1] === "k" && i < g.kernels) note(g.placeClass[g.out(i)[0]], g.kernel.at(i));
  }
  const scan = (column, each, also = () => "") => {
    const hits = new Set(column.dict.flatMap((t, i) => (t.toLowerCase().includes(text) || also(t).includes(text) ? [i] : [])));
    if (hits.size) for (let i = 0; i < column.length && found.size < MOST_FOUND; i++) if (hits.has(column.codes[i])) each(i);
  };
  scan(g.layer, (c) => note(c, `${g.modelOp(c)} in ${g.layer.at(c)}`));
  scan(g.name, (n) => { for (const c of g.weight[g.owner[n]] ? g.readers(g.owner[n]) : []) note(c, `${g.modelOp(c)} reads ${g.name.at(n)}`); });
  scan(g.name, (n) => note(g.owner[n], `${g.op.at(n)} ${g.name.at(n)}`));
  const names = (op) => g.also.get(op) ?? ""; // what ONNX and PyTorch call it: "rotaryembedding" for rope
  scan(g.op, (n) => { if (g.own[n]) note(g.owner[n], `${g.label(n)} in the model`); }, names);
  scan(g.op, (n) => note(g.owner[n], g.label(n)), names);
  scan(g.rule, (n) => note(g.owner[n], `${g.label(n)} by ${g.rule.at(n)}`));
  scan(g.kernel, (k) => note(g.placeClass[g.out(k)[0]], `${g.kernel.at(k)} ${time(g.us[k])}${g.step[k] >= 0 ? ", in the plan" : ""}`));
  scan(g.types, (c) => note(c, g.types.at(c)));
  return found;
}
