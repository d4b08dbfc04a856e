// Elements of the page and texts of numbers. Texts of the data only ever become text nodes, never markup.

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
const many = (n, one, others = one + "s") => `${count(n)} ${n === 1 ? one : others}`;
