// Reads the column format of columns.py.

const ARRAYS = {
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array, float64: Float64Array,
};

// Texts of one column: the distinct texts and a code per row.
class Texts {
  constructor(dict, codes) { this.dict = dict; this.codes = codes; this.length = codes.length; }
  at(row) { return this.dict[this.codes[row]] ?? ""; }
}

class Columns {
  constructor(buffer) {
    const view = new DataView(buffer);
    const length = view.getUint32(4, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
    const first = Math.ceil((8 + length) / 8) * 8;
    const numbers = ([type, offset, count]) => new ARRAYS[type](buffer, first + offset, count);
    this.meta = header.meta;
    this.columns = new Map();
    for (const [name, part] of Object.entries(header.columns)) {
      if (part[0] !== "text") { this.columns.set(name, numbers(part)); continue; }
      const ends = numbers(part[2]), raw = numbers(part[3]), decoder = new TextDecoder();
      const dict = Array.from(ends, (end, i) => decoder.decode(raw.subarray(i ? ends[i - 1] : 0, end)));
      this.columns.set(name, new Texts(dict, numbers(part[1])));
    }
  }
  // A column of numbers, or of texts; empty if the data lacks it.
  numbers(name) { return this.columns.get(name) ?? new Float64Array(0); }
  texts(name) { return this.columns.get(name) ?? new Texts([], new Uint8Array(0)); }
  has(name) { return (this.columns.get(name)?.length ?? 0) > 0; }
  // A column of lists: row -> typed array of its items.
  lists(name) {
    const off = this.numbers(name + ".off"), item = this.numbers(name + ".item");
    return (row) => item.subarray(off[row], off[row + 1]);
  }
}

// The columns of bytes, which may be compressed by zlib.
async function readColumns(bytes) {
  if (bytes[0] === 0x78) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Columns(await new Response(stream).arrayBuffer());
  }
  return new Columns(bytes.slice().buffer);
}

function bytesOfBase64(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// Rows of `count` keys from pairs (key, value): key -> typed array of values. Two passes, no array per key.
function grouped(count, each) {
  const off = new Int32Array(count + 1);
  each((key) => { off[key + 1]++; });
  for (let i = 0; i < count; i++) off[i + 1] += off[i];
  const at = off.slice(), item = new Int32Array(off[count]);
  each((key, value) => { item[at[key]++] = value; });
  return (key) => item.subarray(off[key], off[key + 1]);
}
