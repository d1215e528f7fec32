// Numbers, sizes and times as people read them. Everything is text: nothing here makes markup.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));

export function many(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}

/** A number in at most five characters: 12.3 k, 4.5 M. */
export function brief(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return `${tenth.format(number / 1e9)} G`;
  if (size >= 1e6) return `${tenth.format(number / 1e6)} M`;
  if (size >= 1e4) return `${tenth.format(number / 1e3)} k`;
  return size >= 10 || Number.isInteger(number) ? whole.format(number) : tenth.format(number);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let size = number, unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit === 0 || size >= 100 ? whole.format(size) : tenth.format(size)} ${UNITS[unit]}`;
}

const SPANS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** A length of time in its two largest units: 3 d 4 h. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const first = SPANS.findIndex(([, size]) => ms >= size);
  const [unit, size] = SPANS[first];
  const next = SPANS[first + 1];
  const rest = next ? Math.floor((ms % size) / next[1]) : 0;
  return `${Math.floor(ms / size)} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

/** The same in its largest unit only, where there is little room. */
export const span = (ms) => duration(ms).split(" ").slice(0, 2).join(" ");

export const known = (value) => value !== null && value !== undefined;

export const ago = (ms) => (ms === null || ms === undefined ? "–" : `${duration(ms)} ago`);

/** How long rolled-back events wait before they come again. */
export const backoff = (times) => (times ? `${duration(times.first)}, then ${times.factor} times longer each time, at most ${duration(times.most)}${times.jitter ? `, up to ${Math.round(times.jitter * 100)} % less` : ""}` : "none");

const pad = (number, width = 2) => String(number).padStart(width, "0");

function parsed(value) {
  if (value === null || value === undefined || value === "") return null;
  const date = new Date(value);
  return Number.isNaN(date.getTime()) ? null : date;
}

/** The time of day where the reader is, to the millisecond. */
export function clock(value) {
  const date = parsed(value);
  if (!date) return "–";
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

/** Date and time where the reader is. */
export function moment(value) {
  const date = parsed(value);
  if (!date) return value ? String(value) : "–";
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock(value).slice(0, 8)}`;
}

export const utc = (value) => parsed(value)?.toISOString().replace("T", " ").replace("Z", " UTC") ?? "";

/** Text in quotes for a shell, only where it needs them. */
export const quoted = (text) => (/^[\w./:@=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const GROUP = 8;

/** Data as the rows of a hex view: offset, so many bytes in groups of eight, the characters. */
export function hexRows(data, across = 16, most = 4096) {
  const rows = [];
  for (let at = 0; at < Math.min(data.length, most); at += across) {
    const part = [...data.subarray(at, Math.min(at + across, most))];
    const pairs = Array.from({ length: across }, (_, index) => part[index]?.toString(16).padStart(2, "0") ?? "  ");
    const groups = [];
    for (let from = 0; from < across; from += GROUP) groups.push(pairs.slice(from, from + GROUP).join(" "));
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    rows.push([at.toString(16).padStart(4, "0"), groups.join("  "), text]);
  }
  return rows;
}

/** As many bytes in a row as `columns` characters have room for: 16, 8 or 4. */
export const bytesAcross = (columns) => [16, 8].find((across) => columns >= hexRows(new Uint8Array(1), across)[0].slice(0, 2).join("  ").length + 2 + across) ?? 4;

export function fromBase64(text) {
  const binary = atob(text);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

export function toBase64(data) {
  let text = "";
  for (let at = 0; at < data.length; at += 8192) text += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(text);
}
